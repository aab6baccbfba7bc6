from __future__ import annotations

import doctest

import pytest

from cuplace import tree


def test_the_examples_run():
    assert doctest.testmod(tree).failed == 0


def test_round_trip_and_rest():
    value = {"b": (1, [2, None]), "a": 3}
    leaves, structure = tree.flatten(value)
    assert leaves == [3, 1, 2] == tree.leaves(value)
    assert tree.unflatten(structure, leaves) == value
    assert tree.structure(value) == structure
    assert tree.map(lambda x, y: x * y, value, value) == {"b": (1, [4, None]), "a": 9}
    assert tree.leaves(value, is_leaf=lambda x: isinstance(x, list)) == [3, 1, [2, None]]
    assert tree.reduce(max, value) == 3
    assert tree.reduce(lambda x, y: x + y, {}, 5) == 5
    with pytest.raises(ValueError):
        tree.map(lambda x, y: x, [1, 2], [1])
