"""Array: values over the devices of a sharding. It never changes; what computes with it is attached by upper floors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cuplace.array import interop
from cuplace.array.deletion import deleted_error, end
from cuplace.array.key import OperandKey, key_of
from cuplace.array.printing import array_repr
from cuplace.array.shard import Shard
from cuplace.errors import ArrayConstructorError, ItemAssignmentError, NoAtError, UnsizedError
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.runtime.caller import caller
from cuplace.runtime.guard import SYNC, TO_HOST, armed, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cuplace.array.type import ArrayType
    from cuplace.placement.sharding import Sharding
    from cuplace.runtime.buffer import Buffer, Loan
    from cuplace.runtime.caller import Line
    from cuplace.runtime.device import Device
    from cuplace.transfer.fetch import Fetching

_new = object.__new__


class ArrayMeta(type):
    """Makes values that are being traced instances of Array, so that `isinstance` tests hold under ``jit`` too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or getattr(type(instance), "_is_tracer", False)


class Array(metaclass=ArrayMeta):
    """An array of numbers over one or more devices: shape, dtype, a sharding, and a buffer on each device.

    Arrays are made by `device_put`, by `cuplace.numpy`, and by computations. They never change. Calls that make
    them return at once; reading values (printing, ``numpy.asarray``, ``float``) waits for them.

    Arrays that share all their memory share `_buffers`, and are deleted together. An array whose list is empty
    has been deleted or donated.

    >>> import numpy as np, cuplace
    >>> x = cuplace.device_put(np.float32([0, 1]))
    >>> x, x.committed
    (Array([0., 1.], dtype=float32), False)
    """

    __slots__ = ("__weakref__", "_buffers", "_host", "_key", "_loans", "_origin", "_views")

    _buffers: list[Buffer]
    _key: OperandKey
    _origin: Line | None
    _host: np.ndarray | Fetching | None
    _views: list[Array] | None
    _loans: list[Loan]  # until it dies; few arrays have any

    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100

    def __new__(cls, *args: Any, **kwargs: Any) -> Array:
        raise ArrayConstructorError()

    @staticmethod
    def _make(buffers: list[Buffer], key: OperandKey, origin: Line | None) -> Array:
        """An array over buffers, one for each device in mesh order. The list becomes the array's own.

        `origin` is the line of the user's program that made the array, or committed it.
        """
        array = _new(Array)
        array._buffers = buffers
        array._key = key
        array._origin = origin
        array._host = None
        array._views = None
        return array

    def _alias(self, key: OperandKey, origin: Line | None) -> Array:
        """Another array over the same memory on the same devices: deleted with this one, and this one with it."""
        if self._views is None:
            self._views = []
        array = Array._make(self._buffers, key, origin)
        array._views = self._views
        return array

    def _consume(self, how: str, line: Line | None) -> None:
        """Give up the memory: this array, its aliases and its shards are deleted. `how` is deleted or donated."""
        end(self._buffers, how, line)
        self._host = None
        if self._views:
            views = self._views[:]
            self._views.clear()
            for view in views:
                view._consume(how, line)

    def _live(self) -> list[Buffer]:
        """The buffers as of now, whatever other threads delete. Raises DeletedArrayError where there are none."""
        buffers = self._buffers.copy()
        if not buffers:
            raise deleted_error(self)
        return buffers

    @property
    def _value(self) -> np.ndarray:
        return interop.host_value(self)

    # --- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension, in elements."""
        return self._key.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, a NumPy dtype."""
        return self._key.type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._key.type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._key.type.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._key.type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each counted once."""
        return self._key.type.nbytes

    @property
    def weak_type(self) -> bool:
        """Whether the dtype gives way to that of what the array is combined with, as Python numbers do."""
        return self._key.type.weak_type

    @property
    def aval(self) -> ArrayType:
        """The type that programs are traced on; what `typeof` gives."""
        return self._key.type

    # --- where it is

    @property
    def sharding(self) -> Sharding:
        """Where the data is: which devices, and which part on each."""
        return self._key.sharding

    @property
    def committed(self) -> bool:
        """Whether the array is attached to its devices; else it follows what it is combined with."""
        return self._key.committed

    @property
    def device(self) -> Device | Sharding:
        """The device, where there is one; else the sharding."""
        self._live()
        sharding = self._key.sharding
        device: Device = sharding.flat_devices[0]
        return device if sharding.num_devices == 1 else sharding

    def devices(self) -> set[Device]:
        """The devices that hold a part, without order."""
        self._live()
        return self._key.sharding.device_set

    @property
    def at(self) -> NoReturn:
        """Raises NoAtError, an AttributeError: it tells how to get an array with other elements."""
        raise NoAtError()

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self._key.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return self._key.sharding.is_fully_addressable

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on the devices of this process, in mesh order."""
        views = self._shard_views()
        sharding = self._key.sharding
        layout = sharding.layout(self.shape)
        return list(map(Shard, sharding.flat_devices, layout.indices, layout.replica_ids, views))

    @property
    def global_shards(self) -> list[Shard]:
        """The parts on all devices, in mesh order; the same as `addressable_shards` in a program of one process."""
        return self.addressable_shards

    def addressable_data(self, index: int) -> Array:
        """The part on the device of this number, in mesh order. Raises IndexError where there is none."""
        return self._shard_views()[index]

    def on_device_size_in_bytes(self) -> int:
        """Bytes on all devices together, replicas counted."""
        return sum(buffer.nbytes for buffer in self._live())

    def _shard_views(self) -> list[Array]:
        """The parts as arrays, made once; one that the user deleted is made anew."""
        buffers = self._live()
        if not self._views:
            if self._views is None:
                self._views = []
            self._views += map(self._shard_view, range(len(buffers)))
        views = self._views
        for shard, view in enumerate(views):
            if not view._buffers:
                views[shard] = self._shard_view(shard)
        return views

    def _shard_view(self, shard: int) -> Array:
        sharding, type = self._key.sharding, self._key.type
        place = SingleDeviceSharding(sharding.flat_devices[shard], memory_kind=sharding.memory_kind)
        key = key_of(sharding.shard_shape(type.shape), type.dtype, type.weak_type, place, True)
        return Array._make([self._buffers[shard]], key, self._origin)

    # --- its life

    def block_until_ready(self) -> Array:
        """Wait until the values are there; the array itself.

        Raises:
            TransferGuardError: a RuntimeError, where a guard forbids explicit waits.
            DeletedArrayError: a RuntimeError, where the array has been deleted.
            The original error of the work that should have made the values.
        """
        buffers = self._buffers
        if not buffers:
            raise deleted_error(self, "INVALID_ARGUMENT: BlockHostUntilReady() called on deleted or donated buffer")
        if armed:
            judge(SYNC, True, lambda: f"aval={self.aval!r}, sharding={self.sharding}")
        buffers[0].device.scheduler.host_wait(buffers)
        return self

    def is_ready(self) -> bool:
        """Whether the values are there. Never waits."""
        buffers = self._live()
        return buffers[0].device.scheduler.is_ready(buffers)

    def copy_to_host_async(self) -> None:
        """Let the values be copied to the host, and return at once; reading them later waits for less, or not at all.

        They arrive in pinned memory, which the array keeps. Where the host reads the device's memory in place, as on
        cpu, there is nothing to copy.

        Raises:
            DeletedArrayError: a RuntimeError, where the array has been deleted.
            TransferGuardError: a RuntimeError, where a guard forbids also explicit transfers to the host.

        >>> import cuplace
        >>> x = cuplace.device_put(1.5)
        >>> x.copy_to_host_async()
        >>> float(x)
        1.5
        """
        from cuplace.array.fetch import begin_reading

        self._live()
        if armed:
            judge(TO_HOST, True, lambda: f"aval={self.aval!r}, sharding={self.sharding}")
        begin_reading((self,), caller())

    def is_deleted(self) -> bool:
        """Whether the array has been deleted or donated."""
        return not self._buffers

    def delete(self) -> None:
        """Give up the memory now; it is reused once unfinished work on it is complete.

        All arrays that share it are deleted, and any further use raises DeletedArrayError. Deleting twice is allowed.
        """
        self._consume("deleted", caller())

    def to_device(self, device: Any, *, stream: None = None) -> Array:
        """The array moved to a device or sharding: `device_put`, spelled as in the Array API standard.

        Raises:
            StreamArgumentError: a NotImplementedError, where `stream` is given.
        """
        return interop.to_device(self, device, stream)

    # --- as Python and NumPy values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return interop.to_numpy(self, dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        from cuplace.array.dlpack import to_dlpack

        return to_dlpack(self, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from cuplace.array.dlpack import dlpack_device

        return dlpack_device(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        from cuplace.array.dlpack import cuda_array_interface

        return cuda_array_interface(self)

    def __float__(self) -> float:
        return float(interop.scalar(self))

    def __int__(self) -> int:
        return int(interop.scalar(self))

    def __complex__(self) -> complex:
        return complex(interop.scalar(self))

    def __index__(self) -> int:
        return interop.index(self)

    def __bool__(self) -> bool:
        return interop.truth(self)

    def __bytes__(self) -> bytes:
        return self._value.tobytes()

    def __len__(self) -> int:
        if not self._key.type.shape:
            raise UnsizedError("len() of unsized object")
        return self._key.type.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self._key.type.shape:
            raise UnsizedError("iteration over a 0-d array")
        return interop.rows(self)

    def item(self, *index: Any) -> Any:
        """One element as a Python number: of this index, or the only one.

        Raises:
            ValueError: no index is given, and there is more than one element.
        """
        return self._value.item(*index)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self._value.tolist()

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ItemAssignmentError()

    def __repr__(self) -> str:
        return array_repr(self._value, self._key.type.weak_type)

    def __str__(self) -> str:
        return str(self._value)

    def __format__(self, spec: str) -> str:
        value = self._value
        return format(value[()] if value.ndim == 0 else value, spec)

    def __copy__(self) -> Array:
        return Array._make(self._live(), self._key, self._origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return interop.unpickle, interop.pickled(self)
