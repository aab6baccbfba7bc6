"""Virtual time: work takes as long as a test says, so that times of events are known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.fakecuda import native


class Clock:
    """The host's clock in virtual time. It stands still unless the host waits, or a call has a cost."""

    def now(self) -> int:
        """Nanoseconds, as `time.perf_counter_ns` gives them."""
        return round(native.library().fake_now_ns())

    def advance(self, seconds: float) -> None:
        """The host does something else for so long."""
        native.library().fake_pass_ns(seconds * 1e9)

    def let_drift(self, device: int, parts_per_million: float) -> None:
        """From now on the clock of a device runs so much faster than the host's, until virtual time ends."""
        native.library().fake_set_ticks(device, 1 + parts_per_million * 1e-6)


@contextlib.contextmanager
def virtual_time(
    *, kernel: float = 10e-6, copy: float = 10e-6, bytes_per_second: float = float("inf"), call: float = 0.0
) -> Iterator[Clock]:
    """Inside, times of events are virtual: they follow from what was enqueued, not from the mode or the CPU.

    Any operation starts when its stream is free, what it waits for has ended, and the host has enqueued it. Streams do
    not slow each other down. A kernel named ``*spin*`` is not run and lasts as many nanoseconds as its first argument
    says, one named ``*latch*`` until the host has opened it. A host that asks twice in a row whether the same event is
    complete waits for it: its clock goes on to the end of it.

    Args:
        kernel: seconds that each other kernel takes, and each call of a library.
        copy: seconds that a copy takes, whatever its size.
        bytes_per_second: of copies, in addition.
        call: seconds that each call of the API takes on the host.
    """
    native.library().fake_start_time(kernel * 1e9, copy * 1e9, 1e9 / bytes_per_second, call * 1e9)
    try:
        yield Clock()
    finally:
        native.library().fake_stop_time()
