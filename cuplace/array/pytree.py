"""Pytrees, as JAX has them: tuples, lists, dicts (sorted by key) and None hold leaves; all else is a leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from cuplace.errors import TreePrefixError

CONTAINERS = (tuple, list, dict, type(None))


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves in order, and the structure. None is a structure without leaves.

    >>> flatten({"b": 1, "a": (2, None)})[0]
    [2, 1]
    """
    leaves, structure = optree.tree_flatten(tree)
    return leaves, structure


def unflatten(structure: Any, leaves: Any) -> Any:
    """The tree of this structure with these leaves."""
    return optree.tree_unflatten(structure, leaves)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with `function` applied to each leaf."""
    return optree.tree_map(function, tree)


def broadcast_prefix(name: str, prefix: Any, tree: Any, num_leaves: int) -> list[Any]:
    """For each leaf of `tree` the leaf of `prefix` above it. In `prefix`, None is a leaf.

    >>> broadcast_prefix("place", (1, None), (["a", "b"], "c"), 3)
    [1, 1, None]

    Args:
        name: what `prefix` is, for the error.
        prefix: a tree whose structure is the top of that of `tree`.
        tree: the tree.
        num_leaves: how many leaves `tree` has.

    Raises:
        TreePrefixError: a ValueError, where the structures differ.
    """
    if not isinstance(prefix, CONTAINERS) or prefix is None:
        return [prefix] * num_leaves
    top: Any = prefix
    leaves, structure = optree.tree_flatten(top, none_is_leaf=True)
    try:
        subtrees = structure.flatten_up_to(tree)
    except ValueError as error:
        details = _first_difference(prefix, tree, name, name)
        raise TreePrefixError(name, details or str(error)) from None
    spread: list[Any] = []
    for leaf, subtree in zip(leaves, subtrees, strict=True):
        spread += [leaf] * len(optree.tree_leaves(subtree))
    return spread


def _first_difference(prefix: Any, tree: Any, path: str, name: str) -> str | None:
    """Where and how `prefix` is no prefix of `tree`, in JAX's words; None where nothing is found."""
    if not isinstance(prefix, CONTAINERS) or prefix is None:
        return None
    where = f"at key path\n    {path}\nAt that key path, the prefix pytree {name} has a subtree of type"
    if type(prefix) is not type(tree):
        return (
            f"different types {where}\n    {type(prefix)}\n"
            f"but at the same key path the full pytree has a subtree of different type\n    {type(tree)}."
        )
    if isinstance(prefix, dict) and isinstance(tree, dict):
        return _dict_difference(prefix, tree, path, name, where)
    if len(prefix) != len(tree):
        kind = type(prefix).__name__
        return (
            f"different lengths of {kind} {where} {kind} of length {len(prefix)}, "
            f"but the full pytree has a subtree of the same type but of length {len(tree)}."
        )
    found = (_first_difference(prefix[i], tree[i], f"{path}[{i}]", name) for i in range(len(prefix)))
    return next(filter(None, found), None)


def _dict_difference(prefix: dict[Any, Any], tree: dict[Any, Any], path: str, name: str, where: str) -> str | None:
    if prefix.keys() != tree.keys():
        ours, theirs = (" ".join(sorted(map(str, keys))) for keys in (prefix, tree))
        differing = " ".join(sorted(map(str, prefix.keys() ^ tree.keys())))
        return (
            f"different numbers of pytree children {where}\n    {type(prefix)}\nwith {len(prefix)} child keys\n"
            f"    {ours}\nbut at the same key path the full pytree has a subtree of the same type but with "
            f"{len(tree)} child keys\n    {theirs}\nso the symmetric difference on key sets is\n    {differing}"
        )
    found = (_first_difference(prefix[key], tree[key], f"{path}[{key!r}]", name) for key in prefix)
    return next(filter(None, found), None)
