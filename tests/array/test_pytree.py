from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest

from cuplace.array.pytree import broadcast_prefix, flatten, map_leaves, unflatten
from cuplace.errors import TreePrefixError

Pair = namedtuple("Pair", "left right")


def test_none_is_structure_and_dicts_are_sorted():
    tree = {"b": [1, None], "a": Pair(2, OrderedDict(z=3, y=4))}
    leaves, structure = flatten(tree)
    assert leaves == [2, 3, 4, 1]
    assert unflatten(structure, leaves) == tree
    assert map_leaves(str, (None, 1)) == (None, "1")


def test_a_prefix_spreads_over_the_leaves_below_it():
    tree = ({"a": 1, "b": 2}, [3, None], 4)
    assert broadcast_prefix("p", "s", tree, 4) == ["s"] * 4
    assert broadcast_prefix("p", None, tree, 4) == [None] * 4
    assert broadcast_prefix("p", ({"a": 7, "b": None}, "l", "x"), tree, 4) == [7, None, "l", "x"]
    assert broadcast_prefix("p", [], [], 0) == []


@pytest.mark.parametrize(
    ("prefix", "tree", "text"),
    [
        ((1, 2), (1,), "different lengths of tuple at key path\n    p\n"),
        ([1], (1,), "different types at key path\n    p\n"),
        (((1,),), (None,), "different types at key path\n    p[0]\n"),
        ({"k": (1, 2)}, {"k": (1, 2, 3)}, "different lengths of tuple at key path\n    p['k']\n"),
        ({"a": 1}, {"a": 1, "b": 2}, "so the symmetric difference on key sets is\n    b"),
        (Pair(1, (1,)), Pair(1, 2), "different types at key path\n    p[1]\n"),
    ],
)
def test_what_is_no_prefix_is_shown(prefix, tree, text):
    with pytest.raises(TreePrefixError) as caught:
        broadcast_prefix("p", prefix, tree, len(flatten(tree)[0]))
    assert str(caught.value).startswith(
        "p specification must be a tree prefix of the corresponding value; \n  Mismatch details (1 found):\n"
    )
    assert text in str(caught.value)
