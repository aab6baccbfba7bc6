"""place: one call of a program becomes an executable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.key import OperandKey, key_of
from cuplace.placement.sharding import Sharding
from cuplace.runtime.caller import caller
from cuplace.staging.executable import Entry, Executable
from cuplace.staging.home import Call, Home, find_home
from cuplace.staging.operand import HostKey, ScalarKey
from cuplace.staging.placed import lowering_for
from cuplace.transfer.execute import move
from cuplace.transfer.plan import plan_move
from cuplace.transfer.upload import upload

if TYPE_CHECKING:
    from cuplace.runtime.buffer import Buffer
    from cuplace.staging.lower import Lowering
    from cuplace.staging.operand import Key
    from cuplace.staging.value import Value


def place(call: Call) -> Executable:
    """The executable of a call's program on the devices that its operands and context decide.

    Raises:
        IncompatibleDevicesError: a ValueError; the call names different devices.
        RankError, IndivisibleError: ValueErrors; a sharding that the user asked for does not fit.
    """
    home = find_home(call)
    program = call.program
    lowering = lowering_for(home, program.name)
    inputs = _Inputs(lowering, call)
    constants = _Constants(lowering, program.constants)
    for var, constant in zip(program.captured, program.constants, strict=True):
        lowering.values[var] = constants.enter(var.type, constant)
    outputs = _outputs(lowering, call, lowering.run(program))
    inputs.settle_rest(lowering)
    constants.settle_rest(lowering)
    steps = lowering.steps(outputs)
    results = [
        (value.place, key_of(value.shape, value.dtype, value.weak_type, value.sharding, home.committed))
        for value in outputs
    ]
    numbers = [(position, converter) for (position, _), (_, converter) in lowering.slots.items()]
    return Executable(
        inputs.entries(), numbers, constants.living, constants.baked, steps, results, lowering.num_places,
        _governor(home, program.constants),
    )  # fmt: skip


def _governor(home: Home, constants: Sequence[Any]) -> int | Any | None:
    if home.governor is None:
        return None
    is_constant, position = home.governor
    return constants[position] if is_constant else position


def _outputs(lowering: Lowering, call: Call, values: Sequence[Value]) -> list[Value]:
    outputs = []
    for atom, value, asked in zip(call.program.outputs, values, call.out_shardings, strict=True):
        array = lowering.settle(lowering.array(value))
        outputs.append(lowering.laid_out(array, asked or lowering.final_sharding(atom.type, array)))
    return outputs


class _Inputs:
    """How the operands of a call come in."""

    def __init__(self, lowering: Lowering, call: Call) -> None:
        self._call = call
        self._shardings: dict[int, Sharding] = {}  # position -> where it must be
        self._places: dict[int, Value] = {}
        for i in call.used():
            var, key = call.program.inputs[i], call.keys[i]
            if type(key) is ScalarKey:
                lowering.values[var] = lowering.number(var.type, i, key.kind)
            else:
                lowering.values[var] = self._places[i] = self._array(lowering, i, key)

    def _array(self, lowering: Lowering, position: int, key: Key) -> Value:
        var, asked = self._call.program.inputs[position], self._call.in_shardings[position]
        home = lowering.home
        in_place = isinstance(key, OperandKey) and key.sharding.flat_devices == home.devices
        if in_place and (key.committed or home.single):
            asked = key.sharding
        if asked is None:
            return lowering.input_anywhere(var.type, lambda _, sharding: self._settle(position, sharding))
        self._settle(position, asked)
        return lowering.input(var.type, asked)

    def _settle(self, position: int, sharding: Sharding) -> None:
        self._shardings[position] = sharding

    def settle_rest(self, lowering: Lowering) -> None:
        """Settle those that nothing but the check for use wanted."""
        for value in self._places.values():
            lowering.settle(value)

    def entries(self) -> list[Entry]:
        found = []
        for position, value in self._places.items():
            key, sharding = self._call.keys[position], self._shardings[position]
            if type(key) is HostKey:
                found.append(Entry(position, value.place, None, sharding))
                continue
            assert type(key) is OperandKey
            plan = None
            if not _same_place(key.sharding, sharding, value.shape):
                plan = plan_move(value.shape, value.dtype, key.sharding, sharding)
            found.append(Entry(position, value.place, plan, None))
        return found


def _same_place(ours: Sharding, theirs: Sharding, shape: tuple[int, ...]) -> bool:
    return ours is theirs or ours.is_equivalent_to(theirs, len(shape))


class _Constants:
    """How captured values come in: arrays that are in place at each call, others once, when the program is placed."""

    def __init__(self, lowering: Lowering, constants: Sequence[Any]) -> None:
        self._lowering = lowering
        self.living: list[tuple[int, Array]] = []
        self.baked: list[tuple[int, list[Buffer]]] = []
        self._open: list[Value] = []

    def enter(self, type: Any, constant: Any) -> Value:
        lowering = self._lowering
        if isinstance(constant, np.ndarray):
            value = lowering.input_anywhere(type, lambda place, sharding: self._bake(place, constant, sharding))
        elif constant._key.committed or (
            lowering.home.single and constant._key.sharding.flat_devices == lowering.home.devices
        ):
            value = lowering.input(type, constant._key.sharding)
            self.living.append((value.place, constant))
        else:
            self.living.append((-1, constant))
            value = lowering.input_anywhere(type, lambda place, sharding: self._bake(place, constant, sharding))
        self._open.append(value)
        return value

    def _bake(self, place: int, constant: Any, sharding: Sharding) -> None:
        if isinstance(constant, np.ndarray):
            buffers = upload(constant, sharding, caller())
        else:
            plan = plan_move(constant.shape, constant.dtype, constant._key.sharding, sharding)
            buffers = move(constant._live(), plan, caller())
        self.baked.append((place, buffers))

    def settle_rest(self, lowering: Lowering) -> None:
        for value in self._open:
            lowering.settle(value)
