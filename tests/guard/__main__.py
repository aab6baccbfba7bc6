"""``python -m tests.guard [--values] [words]``: the table of all mutants, or of those with a word in their site's name.

With ``--values`` it tells, too, which test finds a wrong value where the detectors are off.
"""

from __future__ import annotations

import argparse
import sys

from tests.guard.guard import Worker, chosen, explained, orders, row
from tests.guard.sites import find_sites


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guard", description="Try mutants of what orders work.")
    parser.add_argument("words", nargs="*", help="parts of the names of sites")
    parser.add_argument("--values", action="store_true", help="look for wrong values, too, without detectors")
    options = parser.parse_args()
    reasons, survivors = explained(), 0
    with Worker() as worker:
        for site in chosen(find_sites(), options.words):
            outcome = worker.try_mutant(site)
            value = worker.try_mutant(site, only_values=True) if options.values and orders(site) else None
            survivors += not outcome.killed and site.key not in reasons
            print(row(outcome, value, reasons.get(site.key)), flush=True)
    print(f"{survivors} survivors")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
