"""Eager functions: programs of one call, traced once for each kind of operands and run at once.

A public function is written as the body of a traced function and made eager by a decorator:

    @eager("add")
    def add(x, y, /):
        x, y = promote(x, y)
        return bind(ADD, x, y)

    @eager("sum", static=("axis", "keepdims"))
    def sum(a, axis=None, keepdims=False): ...

    @eager("concatenate", static=("axis",), sequences=("arrays",), labels={"arrays": "args"})
    def concatenate(arrays, axis=0): ...

    @eager("zeros", static=("shape", "dtype"), device="device")
    def zeros(shape, dtype=None, *, device=None): ...

The body sees only values of a trace (``Tracer``; None stays None) for its array parameters and plain Python
values for the static ones. Called while a function is being traced, it is simply run; called with arrays and
numbers, it is traced, placed and executed. The parameter named by ``device`` is not given to the body (it gets
None): it says where the results shall be, as ``out_shardings`` of ``jit`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def eager(
    name: str, *, static: tuple[str, ...] = (), sequences: tuple[str, ...] = (),
    labels: Mapping[str, str] | None = None, device: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Make a function of traced values a public function of arrays.

    Args:
        name: what errors and timelines call it.
        static: parameters whose values (hashable) the trace may depend on.
        sequences: parameters that are lists, tuples or other pytrees of arrays.
        labels: parameter names as errors shall print them, where they differ.
        device: the parameter that places the results.
    """
    raise NotImplementedError
