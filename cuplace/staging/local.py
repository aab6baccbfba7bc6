"""LocalOp: one operation on the shards of one device, with local shapes; and where its operands come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuplace.ops.loops import host_function

if TYPE_CHECKING:
    from cuplace.ops.op import Op

Shape = tuple[int, ...]


class Register(NamedTuple):
    """An array at hand: an input of the segment or the result of an earlier operation in it."""

    index: int


class Slot(NamedTuple):
    """A number passed at the call, already converted to its dtype."""

    index: int


class Constant(NamedTuple):
    """A number known since the trace."""

    value: Any


Source = Register | Slot | Constant


class LocalOp:
    """``outs = compute(xp, *args, **params)`` on local arrays.

    Attributes:
        name: the operation's name.
        args: where the operands come from.
        arg_shapes: their local shapes.
        outs: the registers that the results go to; one, except for loops.
        shapes, dtypes: of the results.
        compute: ``compute(xp, *arrays, **params)``; a loop returns a list of arrays and takes ``targets``, for
            each result the memory to write it to, or None.
        params: the local parameters.
        ufunc: the function of ``xp`` that computes it and can write to given memory, if there is one.
        whole: how many numbers its result has on all devices together, where there is a ufunc.
        into: ``into(xp, out, *arrays, **params)``, where that is a way to write to given memory.
        elementwise: whether it may be evaluated block by block.
        is_loop: whether it is a loop.
    """

    __slots__ = (
        "arg_shapes", "args", "compute", "dtypes", "elementwise", "into", "is_loop", "name", "outs", "params",
        "shapes", "ufunc", "whole",
    )  # fmt: skip

    def __init__(
        self, name: str, compute: Callable[..., Any], args: Sequence[Source], arg_shapes: Sequence[Shape],
        outs: Sequence[int], shapes: Sequence[Shape], dtypes: Sequence[np.dtype], params: Mapping[str, Any],
        ufunc: str | None = None, elementwise: bool = False, into: Callable[..., None] | None = None,
        is_loop: bool = False, whole: int = 0,
    ) -> None:  # fmt: skip
        self.name = name
        self.compute = compute
        self.args = tuple(args)
        self.arg_shapes = tuple(arg_shapes)
        self.outs = tuple(outs)
        self.shapes = tuple(shapes)
        self.dtypes = tuple(dtypes)
        self.params = params
        self.ufunc = ufunc
        self.elementwise = elementwise
        self.into = into
        self.is_loop = is_loop
        self.whole = whole

    @classmethod
    def of(
        cls, op: Op, args: Sequence[Source], arg_shapes: Sequence[Shape], out: int, shape: Shape, dtype: np.dtype,
        params: Mapping[str, Any], whole: int = 0,
    ) -> LocalOp:  # fmt: skip
        """One operation of `cuplace.ops`. Without ``whole`` its result is that of one device."""
        return cls(
            op.name, op.compute, args, arg_shapes, (out,), (shape,), (dtype,), params, op.ufunc, op.elementwise,
            op.into, whole=whole or math.prod(shape),
        )  # fmt: skip

    def renumbered(self, register_of: Mapping[int, int]) -> LocalOp:
        """The same with other register numbers."""
        args = [Register(register_of[arg.index]) if type(arg) is Register else arg for arg in self.args]
        return LocalOp(
            self.name, self.compute, args, self.arg_shapes, [register_of[out] for out in self.outs], self.shapes,
            self.dtypes, self.params, self.ufunc, self.elementwise, self.into, self.is_loop, self.whole,
        )  # fmt: skip

    def function(self, xp: Any) -> Callable[..., Any]:
        """The function that computes it into given memory, chosen by the whole result; it has a ufunc."""
        assert self.ufunc is not None
        if xp is np:
            return host_function(self.ufunc, self.dtypes[0], self.whole)
        function: Callable[..., Any] = getattr(xp, self.ufunc)
        return function

    @property
    def reads(self) -> list[int]:
        """The registers that are read."""
        return [arg.index for arg in self.args if type(arg) is Register]

    def __repr__(self) -> str:
        return f"{self.outs} = {self.name}({', '.join(map(repr, self.args))}) {self.shapes}"
