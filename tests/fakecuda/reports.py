"""What the fake has found: races, uses of freed memory, wrong devices and the like."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.fakecuda import native


@dataclass(frozen=True)
class Side:
    """One access of a finding.

    Attributes:
        what: the call or the kernel.
        access: ``read``, ``write``, ``launch``, ...
        actor: the stream or host thread.
        user: the user's line, as ``file:line in function``, if it is known.
        library: the line of the library under test, if the call came from there.
    """

    what: str
    access: str
    actor: str
    user: str | None
    library: str | None

    def __str__(self) -> str:
        lines = [f"{self.access} by {self.what} on {self.actor}"]
        lines += [f"      at {line}" for line in (self.user, self.library) if line]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """A finding.

    Attributes:
        kind: ``race``, ``use after free``, ``out of bounds``, ``bad free``, ``peer access not enabled``,
            ``wrong device``, ``wrong direction``, ``invalid handle``, ``not device memory``, ``no host kernel``,
            ``device lost``, ``divergent barrier``, ``latch timed out``, ``host call failed`` or ``sanitizer``.
        text: where it is.
        sides: who is involved; for a race first the later access, then the earlier one.
        count: how often it was found.
    """

    kind: str
    text: str
    sides: tuple[Side, ...]
    count: int

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return "\n    ".join([f"{self.kind}: {self.text}{times}", *map(str, self.sides)])


def take_reports() -> list[Report]:
    """What was found since the last call. A test of correct code asserts that it is ``[]``."""
    found = json.loads(native.library().fake_take_reports().decode())
    return [Report(r["kind"], r["text"], tuple(Side(**side) for side in r["sides"]), r["count"]) for r in found]
