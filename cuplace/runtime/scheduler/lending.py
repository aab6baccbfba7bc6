"""Memory and streams of others: what they made is adopted, what is ours is lent to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cuplace.runtime.buffer import Buffer, Loan
from cuplace.runtime.scheduler.host import Host
from cuplace.runtime.scheduler.rules import note_read

if TYPE_CHECKING:
    from cuplace.runtime.backends.base import Stream
    from cuplace.runtime.device import Device


class Lending(Host):
    """The doors ``adopt``, ``lend`` and ``lend_out``. ``Memory`` takes back what ``lend_out`` has lent."""

    def adopt(self, array: Any, device: Device, stream: Stream | None = None) -> Buffer:
        """A buffer over memory that somebody else allocated, as of what ``stream`` has enqueued so far.

        Without a stream the memory is taken to be complete. The owner is kept alive as long as work needs it. Memory
        that was made on the device's own compute stream is ours from now on, and is given back in its order.
        """
        with self.lock:
            memory = device.memory
            arena = memory.returned if stream is device.compute else memory.foreign
            buffer = Buffer(device, arena.adopt(array), array, int(array.nbytes))
            if stream is not None:
                event = self._mark(stream)
                buffer.writes = () if event is None else (event,)
            return buffer

    @contextmanager
    def lend(self, buffer: Buffer, stream: Stream | None = None) -> Iterator[Any]:
        """Lend ``buffer``'s memory to work that the caller enqueues on ``stream`` inside the ``with`` block.

        The stream waits for the writes; the caller's use counts as a read that ends with what is on the stream
        when the block ends. Without a stream the host itself is the reader: it waits.

        Raises:
            The original error of the work that should have written the buffer, where it is known to have failed.
        """
        if stream is None:
            self.host_wait((buffer,))
            yield buffer.array
            return
        with self.lock:
            self._wait_for_writes(buffer, stream)
        try:
            yield buffer.array
        finally:
            with self.lock:
                last = self._mark(stream)
                if last is not None:
                    note_read(buffer, stream, last)

    def lend_out(self, buffer: Buffer, waits: Stream | None, ends: Stream) -> Loan:
        """Lend ``buffer``'s memory until the loan that is returned dies, at any moment and in any thread.

        The stream ``waits`` waits for the writes (None: the borrower sees to it); the use counts as a read that ends
        with what is on the stream ``ends`` by the time that a door learns of the loan's death.

        Raises:
            The original error of the work that should have written the buffer, where it is known to have failed.
        """
        with self.lock:
            if waits is not None:
                self._wait_for_writes(buffer, waits)
            return Loan(buffer, ends)

    def _wait_for_writes(self, buffer: Buffer, stream: Stream) -> None:
        for event in buffer.writes:
            if event.done and event.error is not None:
                raise event.error
            if event.stream is not stream:
                stream.wait(event)
