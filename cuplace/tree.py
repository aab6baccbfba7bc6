"""Functions on pytrees, as `jax.tree` has them.

Tuples, lists, dicts, named tuples and None are structure, and all else is a leaf. The leaves of a dict are ordered by
its keys; the dict itself keeps its order. None has no leaves: it comes back unchanged from `map`.

>>> from cuplace import tree
>>> tree.map(lambda x: 10 * x, {"b": (1, 2), "a": None})
{'b': (10, 20), 'a': None}
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

import optree

__all__ = ["all", "flatten", "leaves", "map", "reduce", "structure", "transpose", "unflatten"]

_NOTHING = object()


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """The leaves in order, and the structure. What `is_leaf` is true of is a leaf, whatever it holds.

    >>> flatten((1, [2, None]))[0]
    [1, 2]
    """
    found, treedef = optree.tree_flatten(tree, is_leaf)
    return found, treedef


def unflatten(treedef: Any, leaves: Iterable[Any]) -> Any:
    """The tree of this structure with these leaves. Raises ValueError for another number of leaves.

    >>> unflatten(structure({"a": 0, "b": 0}), [1, 2])
    {'a': 1, 'b': 2}
    """
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves in order.

    >>> leaves({"b": 2, "a": 1})
    [1, 2]
    """
    return optree.tree_leaves(tree, is_leaf)


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The structure without the leaves; structures of equal form are equal.

    >>> structure([1, (2,)]) == structure(["a", ("b",)])
    True
    """
    return optree.tree_structure(tree, is_leaf)


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree of ``f(leaf, ...)``, with the corresponding parts of the trees `rest`.

    Raises:
        ValueError: a tree of `rest` does not have the structure of `tree` at its top.

    >>> map(lambda x, y: x + y, [1, 2], [10, 20])
    [11, 22]
    """
    return optree.tree_map(f, tree, *rest, is_leaf=is_leaf)


def reduce(function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _NOTHING) -> Any:
    """The leaves combined from the left, starting with `initializer` where one is given.

    >>> reduce(lambda x, y: x + y, {"a": 1, "b": (2, 3)})
    6
    """
    found = leaves(tree)
    return (
        functools.reduce(function, found) if initializer is _NOTHING else functools.reduce(function, found, initializer)
    )


def all(tree: Any) -> bool:
    """Whether all leaves are true.

    >>> all([True, (True, None)])
    True
    """
    return builtins.all(leaves(tree))


def transpose(outer_treedef: Any, inner_treedef: Any, tree: Any) -> Any:
    """A tree of structure inner over outer from one of structure outer over inner.

    >>> transpose(structure([0, 0]), structure({"a": 0}), [{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    return optree.tree_transpose(outer_treedef, inner_treedef, tree)
