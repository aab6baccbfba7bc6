"""What every command line of cuplace does alike: errors of one line, and a quiet end when nobody reads any more."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def exit_status(prog: str, act: Callable[[], int], failures: tuple[type[Exception], ...]) -> int:
    """What ``act`` returns; 1 where it fails by one of ``failures``, of which a line is told, or is no longer read;
    130 after Ctrl-C.

    >>> exit_status("tool", lambda: 0, (ValueError,))
    0
    """
    try:
        return act()
    except BrokenPipeError:
        # The reader of our output has left; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return 130
    except failures as error:
        print(f"{prog}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
