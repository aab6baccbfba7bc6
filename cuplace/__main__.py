"""`python -m cuplace`."""

from __future__ import annotations

import sys

from cuplace.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
