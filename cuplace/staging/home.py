"""Home: the devices on which one call of a program runs, and what decided so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplace.array.array import Array
from cuplace.array.key import OperandKey
from cuplace.placement.commitment import Conflict, governing
from cuplace.placement.memory_space import DEVICE
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding, Sharding, SingleDeviceSharding
from cuplace.placement.spec import PartitionSpec
from cuplace.staging.conflict import Claim, argument_claim, incompatible_devices
from cuplace.staging.put import PUT

if TYPE_CHECKING:
    from cuplace.placement.mesh import AbstractMesh
    from cuplace.runtime.context import ContextKey
    from cuplace.runtime.device import Device
    from cuplace.runtime.host_memory import HostMemory
    from cuplace.staging.operand import Key
    from cuplace.staging.program import Program


@dataclass
class Call:
    """One call of a program, before it is placed.

    Attributes:
        program: what is called.
        operands: one a program input.
        keys: their keys.
        names: gives the operands' names, as errors print them.
        in_shardings, out_shardings: what the user asked for, one for each input and output, or None.
        context: the calling thread's context.
    """

    program: Program
    operands: Sequence[Any]
    keys: Sequence[Key]
    names: Callable[[], Sequence[str]]
    in_shardings: Sequence[Sharding | None]
    out_shardings: Sequence[Sharding | None]
    context: ContextKey

    def used(self) -> list[int]:
        """The positions of the inputs that anything depends on."""
        return [i for i, used in enumerate(self.program.used) if used]


class Home:
    """Where a program runs.

    Attributes:
        sharding: of the claim that decided; its spec does not matter.
        devices: in mesh order.
        mesh: the mesh, or None on a single device without one.
        committed: whether results are committed there.
        governor: the array that decided, as (is it a constant, position), or None.
    """

    def __init__(self, sharding: Sharding, committed: bool, governor: tuple[bool, int] | None) -> None:
        self.sharding = sharding
        self.devices: tuple[Device, ...] = sharding.flat_devices
        self.mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        assert self.mesh is None or isinstance(self.mesh, Mesh)
        self.committed = committed
        self.governor = governor

    @property
    def single(self) -> bool:
        """Whether it is one device only, so that nothing is ever laid out in pieces."""
        return len(self.devices) == 1

    def concrete(self, mesh: AbstractMesh) -> Mesh:
        """The mesh of these devices, in their order, with the axes of an abstract mesh."""
        if self.mesh is not None and self.mesh.abstract_mesh is mesh:
            return self.mesh
        return Mesh(_grid(self.devices, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)

    def replicated(self, ndim: int, kind: str = DEVICE) -> Sharding:
        """Whole arrays on each device, in memory of a kind."""
        if self.mesh is None:
            return self.sharding.with_memory_kind(kind)
        return NamedSharding(self.mesh, PartitionSpec().padded(ndim), kind)

    def places(self, kind: str) -> list[Device | HostMemory]:
        """Where work on memory of a kind is done, in mesh order."""
        return [device.place(kind) for device in self.devices]


def find_home(call: Call) -> Home:
    """The devices of a call: those of committed arguments and captured arrays, else ``in_shardings``, else the
    context mesh, else ``out_shardings``, else the default device.

    Raises:
        IncompatibleDevicesError: a ValueError; two of them differ, or a move inside goes elsewhere.
    """
    claims, governors = _claims(call)
    home = _home(call, claims, governors)
    _check_moves(call, home, claims)
    return home


def _claims(call: Call) -> tuple[list[Claim], list[tuple[bool, int] | None]]:
    program = call.program
    claims: list[Claim] = []
    governors: list[tuple[bool, int] | None] = []

    def add(claim: Claim, governor: tuple[bool, int] | None = None) -> None:
        claims.append(claim)
        governors.append(governor)

    used = call.used()
    for i in used:
        key = call.keys[i]
        if type(key) is OperandKey and key.committed:
            name = _namer(call, i)
            origin = call.operands[i]._origin
            add(argument_claim(name, program.name, key.type, key.sharding, origin), (False, i))
    for i, constant in enumerate(program.constants):
        if type(constant) is Array and constant._key.committed:
            add(_captured_claim(constant), (True, i))
    for i in used:
        sharding = call.in_shardings[i]
        if sharding is not None:
            add(Claim(sharding, lambda: "ARG_SHARDING", str))
    if not call.context.mesh.empty:
        context = NamedSharding(call.context.mesh, PartitionSpec())
        add(Claim(context, lambda: "jit's context mesh", str))
    for sharding in call.out_shardings:
        if sharding is not None:
            add(Claim(sharding, lambda: "explicit output sharding", str))
    return claims, governors


def _namer(call: Call, position: int) -> Callable[[], str]:
    return lambda: call.names()[position]


def _captured_claim(array: Array) -> Claim:
    key = array._key
    return Claim(
        key.sharding, lambda: f"captured array with shape {key.type} and", lambda: "the captured array", array._origin
    )


def _home(call: Call, claims: list[Claim], governors: list[tuple[bool, int] | None]) -> Home:
    if not claims:
        commits = any(equation.op is PUT and equation.params["commits"] for equation in call.program.walk())
        return Home(SingleDeviceSharding(call.context.device), commits, None)
    best = governing([claim.sharding for claim in claims])
    if isinstance(best, Conflict):
        raise incompatible_devices(claims[best.first], claims[best.second])
    return Home(claims[best].sharding, True, governors[best] or governors[0])


def _check_moves(call: Call, home: Home, claims: list[Claim]) -> None:
    """Check that the moves inside the program stay on its devices."""
    first = claims[0] if claims else Claim(home.sharding, lambda: "jit's default device", str)
    for equation in call.program.walk():
        if equation.op is PUT:
            sharding, who = equation.params["sharding"], equation.params["who"]
        else:
            sharding, who = equation.params.get("out_sharding"), "out_sharding inside jit"
        if sharding is not None and sharding.flat_devices != home.devices:
            raise incompatible_devices(first, Claim(sharding, lambda who=who: who, str, line=equation.line))


def _grid(devices: Sequence[Device], sizes: tuple[int, ...]) -> Any:
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return grid.reshape(sizes)
