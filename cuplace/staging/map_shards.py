"""map_shards: a function of the user's, with kernels of its own, called for each shard on its device."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace import errors
from cuplace.array.array import Array
from cuplace.array.dtypes import canonicalize, checked_dtype
from cuplace.array.foreign import adopted, duplicate
from cuplace.array.host import read_host_value
from cuplace.array.key import key_of
from cuplace.array.pytree import flatten, unflatten
from cuplace.array.route import check_fit, route
from cuplace.array.type import typeof
from cuplace.placement.commitment import Conflict, governing
from cuplace.placement.memory_space import DEVICE
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.runtime.caller import caller
from cuplace.runtime.context import context_mesh, current_default_device, is_tracing
from cuplace.runtime.guard import armed
from cuplace.staging.arguments import argument_names
from cuplace.staging.asked import UNSPECIFIED, check_leaves, spread_outputs
from cuplace.staging.conflict import Claim, argument_claim, incompatible_devices
from cuplace.staging.home import Home
from cuplace.staging.jit import function_name
from cuplace.staging.kernel import READ, VALUE, WRITTEN, Kernel, Made, Source
from cuplace.staging.operand import is_scalar
from cuplace.staging.overwrite import ALONE, count_holders
from cuplace.transfer.execute import move
from cuplace.transfer.guarded import judge_move, judge_upload
from cuplace.transfer.upload import upload

if TYPE_CHECKING:
    from cuplace.runtime.buffer import Buffer
    from cuplace.runtime.caller import Line
    from cuplace.transfer.plan import TransferPlan


def map_shards(
    f: Callable[..., Any], /, *args: Any, out_shape: Any = None, out_shardings: Any = UNSPECIFIED,
    donate_argnums: int | Sequence[int] = (),
) -> Any:  # fmt: skip
    """Call `f` once for each shard, in mesh order, with what the shard's device holds of the arrays in `args`.

    `f` may launch whatever it likes: on cuda it gets CuPy arrays, and finds the device and the stream on which they
    are ready current, so CuPy's functions, `cupy.RawKernel`, `ElementwiseKernel` and, given that stream, numba's
    kernels need no synchronization. On cpu and sim it gets NumPy arrays. It returns new arrays, or arrays that it was
    given to write to. Nothing is waited for: on cuda `f` is called at once, and its work runs later; on cpu and sim
    the call itself comes when its inputs are ready, in a thread of cuplace's.

    The arrays are dense (C order), and `f` must not write to them, nor keep them (NumPy's are read-only, CuPy has no
    such flag), except those of `donate_argnums`. It must not wait for arrays of cuplace.

    Args:
        f: a plain function of as many arguments as there are `args`.
        args: arrays, or pytrees of them, all on the same devices. Uncommitted arrays, NumPy arrays and CuPy arrays
            follow: each device gets the whole of them. Numbers come as they are.
        out_shape: what the result is as a whole: something with a shape and a dtype (`ShapeDtypeStruct`, an array), or
            a pytree of these. Without it `f` returns one array, like the first committed one in `args`.
        out_shardings: a sharding over the same devices for each result, or a pytree prefix of these; without it that
            of `out_shape`, else that of the first committed array.
        donate_argnums: positions of the arguments that are consumed. `f` may write to their arrays, and return them.

    Returns:
        An array, or a pytree of arrays as `f` returns it.

    Raises:
        IncompatibleDevicesError: a ValueError; arrays, or out_shardings, are on different devices.
        KernelInsideJitError, OutShapeError, NotCallableError: TypeErrors.
        RankError, IndivisibleError: ValueErrors; a result cannot be laid out as its sharding says.
        MemorySpaceError: a ValueError; arrays are in different memories.
        DeletedArrayError, DonationError, TransferGuardError: RuntimeErrors.
        KernelResultError, a ValueError, where `f` returns something else, and what `f` raises: on cuda from the call,
            on cpu and sim where a result is waited for, with the line of the call as a note. Donated arrays are gone.

    >>> import cuplace, cuplace.numpy as cnp
    >>> map_shards(lambda x, y: x * 2 + y, cnp.arange(4), 1)
    Array([1, 3, 5, 7], dtype=int32)
    """
    if not callable(f):
        raise errors.NotCallableError(f"map_shards expected a callable value, got {f}.")
    name = function_name(f)
    leaves, structure = flatten((args, {}))
    if is_tracing() or any(getattr(type(leaf), "_is_tracer", False) for leaf in leaves):
        raise errors.KernelInsideJitError(name)
    check_leaves("out_shardings", out_shardings)
    names = functools.cache(lambda: argument_names(f, structure))
    operands = [_operand(leaf) for leaf in leaves]
    donated = _donated(args, donate_argnums, operands)
    asked, out_structure = _asked(operands, out_shape, out_shardings)
    home, governor = _home(name, names, operands, [sharding for _, _, sharding in asked])
    made = _made(asked, _lead(operands), home)
    devices = [device.place(_kind(home, operands, made)) for device in home.devices]
    plans = [_plan(operand, home) for operand in operands]
    line = caller()

    reads: list[list[Buffer]] = []
    written: list[list[Buffer]] = []
    values: list[Any] = []
    groups: tuple[list[Any], list[Any], list[Any]] = (reads, written, values)
    sources = []
    for i, operand in enumerate(operands):
        if is_scalar(operand):
            group, found = VALUE, operand
        else:
            group, found = WRITTEN if i in donated else READ, _placed(operand, plans[i], home, line)
        sources.append(Source(group, len(groups[group])))
        groups[group].append(found)
    for i in donated:
        operands[i]._consume("donated", line)
    written[:] = [_writable(buffers, line) for buffers in written]
    kernel = Kernel(f, name, structure, sources, values, out_structure, made)
    results = kernel.run(devices, reads, written, line)
    origin = line if governor is None else governor._origin
    arrays = [Array._make(buffers, one.key, origin) for buffers, one in zip(results, made, strict=True)]
    return unflatten(out_structure, arrays)


def _operand(leaf: Any) -> Any:
    """A leaf as an array, a NumPy array of a type that arrays can have, or a number."""
    if type(leaf) is Array:
        leaf._live()
        return leaf
    if is_scalar(leaf):
        return leaf
    mine = None if isinstance(leaf, np.ndarray) else adopted(leaf)
    return read_host_value(leaf)[0] if mine is None else mine


def _donated(args: tuple[Any, ...], argnums: Any, operands: Sequence[Any]) -> list[int]:
    """The positions of the leaves that are donated."""
    nums = [operator.index(n) for n in (argnums if isinstance(argnums, list | tuple) else (argnums,))]
    for n in nums:
        if not -len(args) <= n < len(args):
            raise errors.StaticArgumentError(f"map_shards has donate_argnums={argnums}, but {len(args)} arguments.")
    wanted = {n % len(args) for n in nums}
    flags = [n in wanted for n, arg in enumerate(args) for _ in flatten(arg)[0]]
    donated = [i for i, flag in enumerate(flags) if flag and type(operands[i]) is Array]
    for i in donated:
        for k, other in enumerate(operands):
            if k != i and type(other) is Array and other._buffers is operands[i]._buffers:
                raise errors.DonationError(
                    "map_shards: an array is donated and given a second time in the same call (flattened arguments "
                    f"{i} and {k}).\nGive another array, or leave out donate_argnums."
                )
    return donated


def _lead(operands: Sequence[Any]) -> Any:
    """The array that results are like: the first committed one, else the first one, or None."""
    arrays = [operand for operand in operands if not is_scalar(operand)]
    committed = [array for array in arrays if type(array) is Array and array.committed]
    return next(iter(committed + arrays), None)


Asked = tuple[tuple[int, ...], np.dtype, Sharding | None]


def _asked(operands: Sequence[Any], out_shape: Any, out_shardings: Any) -> tuple[list[Asked], Any]:
    """Shape, dtype and sharding (where one is asked for) of each result, and their structure."""
    if out_shape is None:
        out_shape = _lead(operands)
        if out_shape is None:
            raise errors.OutShapeError(
                "map_shards: there is no array that the result could be like.\n"
                "Say what the function returns: out_shape=cuplace.ShapeDtypeStruct(shape, dtype)."
            )
        outs, structure = flatten(out_shape)
        shardings: list[Sharding | None] = [None]
    else:
        outs, structure = flatten(out_shape)
        shardings = [_own_sharding(out) for out in outs]
    chosen = spread_outputs(out_shardings, structure)
    return [
        (*_shape_and_dtype(out), asked or own) for out, asked, own in zip(outs, chosen, shardings, strict=True)
    ], structure


def _own_sharding(out: Any) -> Sharding | None:
    if type(out) is Array and not out.committed:
        return None
    sharding = getattr(out, "sharding", None)
    return sharding if isinstance(sharding, Sharding) else None


def _shape_and_dtype(out: Any) -> tuple[tuple[int, ...], np.dtype]:
    shape, dtype = getattr(out, "shape", None), getattr(out, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        raise errors.OutShapeError(
            f"map_shards: out_shape holds {out!r} of type {type(out)}, which has no shape and dtype.\n"
            "Write cuplace.ShapeDtypeStruct(shape, dtype) for each result, or give an array that it is like."
        )
    return shape, canonicalize(checked_dtype(np.dtype(dtype)))


def _home(
    name: str, names: Callable[[], Sequence[str]], operands: Sequence[Any], asked: Sequence[Sharding | None]
) -> tuple[Home, Array | None]:
    """The devices of a call, as those of a jitted function are found, and the array that decided, if one did."""
    claims: list[Claim] = []
    governors: list[Array | None] = []
    for i, operand in enumerate(operands):
        if type(operand) is Array and operand.committed:
            claims.append(
                argument_claim(lambda i=i: names()[i], name, operand.aval, operand.sharding, operand._origin)  # type: ignore[misc]
            )
            governors.append(operand)
    mesh = context_mesh()
    if mesh is not None:
        claims.append(Claim(NamedSharding(mesh, PartitionSpec()), lambda: "the context mesh", str))
    claims += [Claim(sharding, lambda: "explicit output sharding", str) for sharding in asked if sharding is not None]
    if not claims:
        return Home(SingleDeviceSharding(current_default_device()), False, None), None
    best = governing([claim.sharding for claim in claims])
    if isinstance(best, Conflict):
        raise incompatible_devices(claims[best.first], claims[best.second])
    governor = governors[best] if best < len(governors) else governors[0] if governors else None
    return Home(claims[best].sharding, True, None), governor


def _made(asked: Sequence[Asked], lead: Any, home: Home) -> list[Made]:
    """The results, as keys and as what each device makes."""
    made = []
    for shape, dtype, own in asked:
        sharding = own or (_target(lead, home) if type(lead) is Array else home.replicated(len(shape)))
        check_fit(sharding, shape)
        made.append(Made(key_of(shape, dtype, False, sharding, home.committed), sharding.shard_shape(shape)))
    return made


def _target(array: Array, home: Home) -> Sharding:
    """Where an array is while the function runs: where it is, or whole on each device."""
    sharding = array.sharding
    return sharding if sharding.flat_devices == home.devices else home.replicated(array.ndim)


def _plan(operand: Any, home: Home) -> TransferPlan | None:
    """How an operand that is not where the function runs gets there; None for one that is, and for numbers.

    Raises:
        TransferGuardError: a RuntimeError; a guard forbids that.
    """
    if is_scalar(operand):
        return None
    if type(operand) is not Array:
        if armed:
            judge_upload(typeof(operand), home.replicated(operand.ndim), False)
        return None
    plan = route(operand._key, _target(operand, home)).plan
    if armed and plan is not None:
        judge_move(operand.aval, plan, False)
    return plan


def _placed(operand: Any, plan: TransferPlan | None, home: Home, line: Line | None) -> list[Buffer]:
    if type(operand) is not Array:
        return upload(operand, home.replicated(operand.ndim), line)
    return operand._live() if plan is None else move(operand._live(), plan, line)


def _writable(buffers: list[Buffer], line: Line | None) -> list[Buffer]:
    """The buffers of a donated array, or copies of those whose memory is not free to be written over."""
    scheduler = buffers[0].device.scheduler
    for i in range(len(buffers)):
        if count_holders(buffers[i : i + 1]) > ALONE + 1 or not scheduler.may_overwrite(buffers[i : i + 1]):
            buffers[i] = duplicate(buffers[i], buffers[i].array.dtype, line)
    return buffers


def _kind(home: Home, operands: Sequence[Any], made: Sequence[Made]) -> str:
    """The one kind of memory that all is in. Raises MemorySpaceError for several."""
    shardings = [operand.sharding for operand in operands if type(operand) is Array and operand.committed]
    shardings += [one.key.sharding for one in made]
    kinds = sorted({sharding.memory_kind or DEVICE for sharding in (home.sharding, *shardings)})
    if len(kinds) > 1:
        raise errors.MemorySpaceError(
            f"map_shards: arrays and results are in different memories, {' and '.join(kinds)}.\n"
            "Move them to one of these first, with device_put(x, x.sharding.with_memory_kind(kind))."
        )
    return kinds[0]
