"""What the race checker cannot see itself: what kernels of ours, the host and library calls touch."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.fakecuda import native


class Region(NamedTuple):
    """Elements of ``itemsize`` bytes at ``address``, with ``strides`` in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


class Launch(NamedTuple):
    """A launch, as told to the function that was given to ``declare_kernel``.

    Attributes:
        kernel: its name.
        arguments: the bytes of each.
        grid: blocks along x, y and z.
        block: threads along x, y and z.
        shared: bytes of dynamic shared memory.
    """

    kernel: str
    arguments: tuple[bytes, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int

    def integer(self, index: int) -> int:
        """An argument as a number; an address is one."""
        return int.from_bytes(self.arguments[index], "little")


Touched = tuple[Sequence[Any], Sequence[Any]]

_describers: dict[str, Any] = {}


def region_of(touched: Any) -> Region:
    """The region of a CuPy array, of a NumPy array, or of anything with a ``Region``'s attributes."""
    if hasattr(touched, "itemsize") and hasattr(touched, "address"):
        return Region(touched.address, tuple(touched.shape), tuple(touched.strides), touched.itemsize)
    if isinstance(touched, np.ndarray):
        return Region(touched.ctypes.data, touched.shape, touched.strides, touched.itemsize)
    return Region(touched.data.ptr, tuple(touched.shape), tuple(touched.strides), touched.itemsize)


def host_access(address: int, nbytes: int, write: bool) -> None:
    """The host is about to read or write pinned memory.

    Example::

        pinned = cupy.cuda.alloc_pinned_memory(1024)
        fakecuda.host_access(pinned.ptr, 1024, write=True)
        numpy.frombuffer(pinned, numpy.uint8, 1024)[:] = 0
    """
    native.library().fake_host_access(address, nbytes, write)


def kernel_access(reads: Iterable[Any], writes: Iterable[Any]) -> None:
    """The kernel that this thread launches next touches these arrays or regions, and nothing else.

    Without it a kernel with plain pointers is taken to touch all from each pointer to the end of its block.
    """
    regions = _plain(reads, writes)
    native.library().fake_declare(regions, len(regions))


def declare_kernel(name: str, describe: Callable[[Launch], Touched] | None) -> None:
    """From now on ``describe(launch)`` tells what each launch of a kernel reads and writes; None: no longer.

    Example::

        def add_into(launch):  # add_into(float* total, const float* x, int n)
            n = launch.integer(2)
            total, x = (Region(launch.integer(i), (n,), (4,), 4) for i in (0, 1))
            return [x, total], [total]

        fakecuda.declare_kernel("add_into", add_into)
    """
    callback = native.Describe(0) if describe is None else native.Describe(_answer(describe))
    _describers[name] = callback  # C++ holds only the address
    native.library().fake_set_describer(name.encode(), callback)


def pool_block(address: int, nbytes: int) -> None:
    """An allocator above CUDA's has handed out a block: what is launched with a pointer to it ends with it."""
    native.library().fake_add_piece(address, nbytes)


def pool_free(address: int) -> None:
    """The allocator has taken the block back: whatever is enqueued with it from now on is a use after free."""
    native.library().fake_free_piece(address)


@contextlib.contextmanager
def cupy_pool() -> Iterator[None]:
    """Inside, the fake is told of the blocks that CuPy's pool gives to this thread and takes back from it."""
    from cupy.cuda import memory_hook

    class Hook(memory_hook.MemoryHook):  # type: ignore[misc]
        name = "fakecuda"

        def malloc_postprocess(self, **info: Any) -> None:
            pool_block(info["mem_ptr"], info["mem_size"])

        def free_postprocess(self, **info: Any) -> None:
            pool_free(info["mem_ptr"])

    try:
        with Hook():
            yield
    finally:
        native.library().fake_forget_pieces()


def name_stream(stream: Any, name: str) -> None:
    """What reports call a stream (a CuPy stream, or a handle)."""
    native.library().fake_name_stream(getattr(stream, "ptr", stream), name.encode())


# --- host threads ------------------------------------------------------------------------------------------


def hand_on(token: int) -> None:
    """What this thread did so far happens before what a thread does after it has taken the same token."""
    native.library().fake_release(token, False)


def take_over(token: int, *, forget: bool = False) -> None:
    """See ``hand_on``. ``forget``: nobody else will take this token."""
    native.library().fake_acquire(token, forget)


class watched:
    """A lock whose hand-overs order what its holders do: ``scheduler.lock = fakecuda.watched(scheduler.lock)``.

    Python's own locks say nothing to the fake; ``threading.Thread.start`` and ``join`` are watched by themselves.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        got = self._lock.acquire(*args, **kwargs)
        if got:
            take_over(id(self))
        return bool(got)

    def release(self) -> None:
        hand_on(id(self))
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _release_save(self) -> Any:
        """What conditions call to let a re-entrant lock go, however often it is held."""
        hand_on(id(self))
        return self._lock._release_save()

    def _acquire_restore(self, held: Any) -> None:
        self._lock._acquire_restore(held)
        take_over(id(self))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def watch_threads() -> None:
    """Order what a thread does after what its starter did, and before what follows its ``join``."""
    start, join = threading.Thread.start, threading.Thread.join

    def watched_start(self: threading.Thread) -> None:
        born, gone = id(self) * 2, id(self) * 2 + 1
        fake, run = native.library(), self.run

        def watched_run() -> None:
            fake.fake_thread_born(born)
            try:
                run()
            finally:
                fake.fake_release(gone, True)

        self.run = watched_run  # type: ignore[method-assign]
        fake.fake_release(born, True)
        start(self)

    def watched_join(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive():
            take_over(id(self) * 2 + 1, forget=True)

    threading.Thread.start = watched_start  # type: ignore[method-assign]
    threading.Thread.join = watched_join  # type: ignore[method-assign]


# --- ctypes ------------------------------------------------------------------------------------------------


def plain_regions(reads: Iterable[Any], writes: Iterable[Any]) -> ctypes.Array[native.PlainRegion]:
    """What the library takes."""
    return _plain(reads, writes)


def _plain(reads: Iterable[Any], writes: Iterable[Any]) -> ctypes.Array[native.PlainRegion]:
    marked = [(region_of(x), False) for x in reads] + [(region_of(x), True) for x in writes]
    return (native.PlainRegion * len(marked))(*[_plain_region(region, write) for region, write in marked])


def _plain_region(region: Region, write: bool) -> native.PlainRegion:
    ndim = len(region.shape)
    shape, strides = (ctypes.c_int64 * ndim)(*region.shape), (ctypes.c_int64 * ndim)(*region.strides)
    return native.PlainRegion(region.address, region.itemsize, write, ndim, shape, strides)


def _answer(describe: Callable[[Launch], Touched]) -> Callable[[Any], None]:
    def answer(info: Any) -> None:
        told = info.contents
        arguments = tuple(ctypes.string_at(told.args[i], told.sizes[i]) for i in range(told.arg_count))
        launch = Launch(told.kernel.decode(), arguments, tuple(told.grid), tuple(told.block), told.shared)
        kernel_access(*describe(launch))

    return answer
