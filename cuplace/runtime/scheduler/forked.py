"""What is left of a scheduler in a forked child: errors that say so."""

from __future__ import annotations

from typing import Any

from cuplace import errors


class Forked:
    """What a forked child finds in the place of the lock and the backend: its parent's devices are not usable there.

    The parent's threads do not exist in the child, and any lock may have been held by one of them.
    """

    def __getattr__(self, name: str) -> Any:
        raise errors.ForkedProcessError()

    def __enter__(self) -> None:
        raise errors.ForkedProcessError()

    def __exit__(self, *exception: object) -> None:
        pass
