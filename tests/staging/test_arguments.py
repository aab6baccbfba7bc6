from __future__ import annotations

import optree
import pytest

from cuplace.errors import StaticArgumentError
from cuplace.staging.arguments import Chosen, argument_names, merged, static_key


def example(x, y, *rest, flag=False, **options):
    return x, y, rest, flag, options


def plain(x, y, z=0):
    return x, y, z


def test_positions_and_names_of_the_same_argument_count_both():
    by_position, by_name = Chosen("static", plain, -1, None), Chosen("static", plain, None, "z")
    for chosen in (by_position, by_name):
        assert (chosen.nums, chosen.names) == ({2}, {"z"})
    assert not Chosen("static", plain, None, None)


def test_split_and_merged_are_inverse():
    chosen = Chosen("static", example, (1, 2), ("flag",))
    args, kwargs = ("a", "b", "c", "d"), {"flag": True, "more": 1}
    rest, named, static = chosen.split(args, kwargs)
    assert rest == ("a", None, None, "d")
    assert named == {"more": 1}
    assert merged(rest, named, static) == (list(args), kwargs)


@pytest.mark.parametrize(
    ("nums", "names", "text"),
    [
        (5, None, r"Jitted function has static_argnums=\(5,\), but only accepts 3 positional arguments."),
        (-4, None, "only accepts 3"),
        (None, "q", r"Jitted function has invalid argnames {'q'} in static_argnames. Function does not take these"),
    ],
)
def test_arguments_that_do_not_exist_are_refused(nums, names, text):
    with pytest.raises(StaticArgumentError, match=text):
        Chosen("static", plain, nums, names)


@pytest.mark.parametrize(("nums", "names"), [("x", None), (1.5, None), (None, 3), (None, [1])])
def test_positions_are_integers_and_names_are_strings(nums, names):
    with pytest.raises(TypeError):
        Chosen("static", plain, nums, names)


def test_static_keys_tell_types_apart_and_need_a_hash():
    assert static_key(1) != static_key(True)
    with pytest.raises(StaticArgumentError, match=r"Non-hashable static arguments are not supported.*\[1\]"):
        static_key([1])


def names(function, *args, **kwargs):
    return argument_names(function, optree.tree_structure((args, kwargs)))


def test_names_of_leaves():
    tree = {"p": (1, [2])}
    assert names(plain, 1, tree) == ["x", "y['p'][0]", "y['p'][1][0]"]
    assert names(example, 1, 2, 3, (4,)) == ["x", "y", "rest[0]", "rest[1][0]"]
    assert names(example, 1, 2, flag=3, q=4) == ["x", "y", "flag", "options['q']"]
    assert names(lambda *a: a, 1, 2) == ["a[0]", "a[1]"]
    assert names(max, 1, 2) == ["args[0]", "args[1]"]
