"""Quick runs: programs of one submission a device, without an environment. This is the hot path of dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cuplace.array.array import Array
from cuplace.array.deletion import deleted_error

if TYPE_CHECKING:
    from cuplace.array.key import OperandKey
    from cuplace.staging.steps import SegmentStep

Run = Callable[[Sequence[Any]], list[Array]]
Direct = Callable[..., Array]
Numbers = Sequence[tuple[int, Callable[[Any], Any]]]


def quick_run(
    step: SegmentStep, reads: Sequence[int], numbers: Numbers, keys: Sequence[OperandKey], governor: int | None
) -> Run:
    """A function of the operands that launches ``step`` on each device.

    Args:
        step: the only step.
        reads: the position of the operand for each of the step's reads.
        numbers: for each number that the step takes, the operand's position and its converter.
        keys: of the results.
        governor: the operand whose line of commitment the results inherit, or None.
    """
    (task,) = step.tasks
    submit = step.devices[0].scheduler.submit_new
    devices, writes, make = step.devices, step.writes, Array._make

    def run(operands: Sequence[Any]) -> list[Array]:
        given = [operands[i]._buffers.copy() for i in reads]  # another thread may delete an operand now
        if not all(given):
            raise _deleted([operands[i] for i in reads])
        scalars = tuple([convert(operands[i]) for i, convert in numbers]) if numbers else ()
        results = submit(task, writes, devices, given, scalars)
        origin = None if governor is None else operands[governor]._origin
        return [make(buffers, key, origin) for buffers, key in zip(results, keys, strict=True)]

    return run


def single_run(
    step: SegmentStep, reads: Sequence[int], numbers: Numbers, keys: Sequence[OperandKey], governor: int | None
) -> Direct:
    """The same for one result, as a function ``f(*operands)`` that gives the result itself."""
    (task,), (key,) = step.tasks, keys
    submit = step.devices[0].scheduler.submit_new
    devices, writes, make = step.devices, step.writes, Array._make

    def run(*operands: Any) -> Array:
        given = [operands[i]._buffers.copy() for i in reads]  # another thread may delete an operand now
        if not all(given):
            raise _deleted([operands[i] for i in reads])
        scalars = tuple([convert(operands[i]) for i, convert in numbers]) if numbers else ()
        (buffers,) = submit(task, writes, devices, given, scalars)
        return make(buffers, key, None if governor is None else operands[governor]._origin)

    return run


def direct_run(
    step: SegmentStep, reads: Sequence[int], numbers: Numbers, keys: Sequence[OperandKey], governor: int | None,
    arity: int,
) -> Direct | None:  # fmt: skip
    """A function ``f(x)`` or ``f(x, y)`` with one result on one device; None for other shapes of calls.

    The arguments are those of `quick_run`. What these functions do is written out for each kind of call, since
    every name looked up and every loop made here is paid at each operation of a program.
    """
    if len(step.devices) > 1:
        return None
    (device,), (task,), (key,) = step.devices, step.tasks, keys
    submit, made, make = device.scheduler.submit_one, step.writes[0], Array._make
    kind = (arity, tuple(reads), tuple([i for i, _ in numbers]))
    convert = numbers[0][1] if numbers else None
    committed = governor is not None

    def array(x: Any) -> Array:
        try:
            buffers = (x._buffers[0],)
        except IndexError:
            raise deleted_error(x) from None
        return make([submit(task, made, device, buffers)], key, x._origin if committed else None)

    def array_array(x: Any, y: Any) -> Array:
        try:
            buffers = (x._buffers[0], y._buffers[0])
        except IndexError:
            raise _deleted((x, y)) from None
        origin = (y if governor else x)._origin if committed else None
        return make([submit(task, made, device, buffers)], key, origin)

    def array_number(x: Any, y: Any) -> Array:
        assert convert is not None
        try:
            buffers = (x._buffers[0],)
        except IndexError:
            raise deleted_error(x) from None
        return make([submit(task, made, device, buffers, (convert(y),))], key, x._origin if committed else None)

    def number_array(x: Any, y: Any) -> Array:
        return array_number(y, x)

    written = {
        (1, (0,), ()): array,
        (2, (0, 1), ()): array_array,
        (2, (0,), (1,)): array_number,
        (2, (1,), (0,)): number_array,
    }
    return written.get(kind)


def _deleted(operands: Sequence[Any]) -> Exception:
    return deleted_error(next(operand for operand in operands if not operand._buffers))
