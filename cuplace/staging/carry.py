"""The carry of a loop keeps its structure and its types: the checks, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optree

from cuplace import errors
from cuplace.array.type import ArrayType, explicit_spec

_REVISE_TYPES = "Revise the function so that all output types match the corresponding input types."
_REVISE_STRUCTURE = (
    "Revise the function so that the carry output has the same pytree structure as the carry input."
)


def check_carry(names: Sequence[str], given: Sequence[ArrayType], returned: Sequence[ArrayType]) -> None:
    """Check that the types of the carry stay as they are; ``names`` are those of the body's arguments.

    Raises:
        CarryTypeError: a TypeError, with JAX's text.
    """
    differing = [
        (name, a, b) for name, a, b in zip(names, given, returned, strict=False) if _visible(a) != _visible(b)
    ]
    if not differing:
        return
    sentences = [
        f"The input carry {'component ' if '[' in name else ''}{name} has type {a} but the corresponding output carry "
        f"component has type {b}{_difference(a, b)}"
        for name, a, b in differing
    ]
    listed = sentences[0] + "." if len(sentences) == 1 else "\n".join(f"  * {s};" for s in sentences)
    raise errors.CarryTypeError(
        "scan body function carry input and carry output must have equal types, but they differ:\n\n"
        f"{listed}\n\n{_REVISE_TYPES}"
    )


def same_structure(names: Sequence[str], given: Any, carry: Any) -> None:
    """Check that a returned carry has the structure ``given``.

    Raises:
        CarryTypeError: a TypeError, with JAX's text.
    """
    returned = optree.tree_structure(carry)
    if returned == given:
        return
    name = names[0].split("[")[0] if names else "carry"
    ours, theirs = _node(given), _node(returned)
    detail = (
        f"is a {ours} but the corresponding component of the carry output is a {theirs}, so their Python types differ"
        if ours != theirs
        else f"has structure {given} but the carry output has structure {returned}"
    )
    raise errors.CarryTypeError(
        "scan body function carry input and carry output must have the same pytree structure, but they differ:\n\n"
        f"The input carry {name} {detail}.\n\n{_REVISE_STRUCTURE}"
    )


def _visible(of: ArrayType) -> tuple[Any, ...]:
    return of.shape, of.dtype, explicit_spec(of.spec, of.mesh).trimmed()


def _difference(a: ArrayType, b: ArrayType) -> str:
    if a.shape != b.shape:
        return ", so the shapes do not match"
    if a.dtype != b.dtype:
        return ", so the dtypes do not match"
    return ", so the shardings do not match"


def _node(structure: Any) -> Any:
    return ArrayType if optree.treespec_is_leaf(structure) else structure.type
