from __future__ import annotations

import copy
import gc
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace import errors
from cuplace.placement import spec as spec_module
from cuplace.placement.spec import UNCONSTRAINED, P, PartitionSpec

names = st.sampled_from("abc")
entries = st.one_of(st.none(), st.just(UNCONSTRAINED), names, st.lists(names, max_size=3).map(tuple))
specs = st.lists(entries, max_size=4).map(lambda parts: P(*parts))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P("x"), "P('x',)"),
        (P(), "P()"),
        (P(None), "P(None,)"),
        (P("x", None, ("x", "y"), P.UNCONSTRAINED), "P('x', None, ('x', 'y'), UNCONSTRAINED)"),
        (P(("x", "y")), "P(('x', 'y'),)"),
        (P("x", unreduced={"y"}), "P('x', unreduced={'y'}, unreduced_kind=sum)"),
        (P("x", reduced={"z", "y"}), "P('x', reduced={'y', 'z'})"),
    ],
)
def test_repr_is_that_of_jax(spec, text):
    assert repr(spec) == str(spec) == text


def test_entries_have_one_spelling():
    assert P("x") is P(("x",))
    assert P(["x", "y"]) is P(("x", "y"))
    assert P(()) is P(None)
    assert P("x", ("y",), (), ("x", "y")).partitions == ("x", "y", None, ("x", "y"))
    assert P("x", ("y", "z"), None, UNCONSTRAINED).entries == (("x",), ("y", "z"), None, UNCONSTRAINED)
    assert P("x", ("y", "z"), None).axes == ("x", "y", "z")


def test_equal_means_the_same_entries():
    assert P("x") != P("x", None)
    assert P("x") != ("x",)
    assert P("x") != P("x", unreduced={"y"})
    assert hash(P("x")) == hash(P(["x"]))
    assert P is PartitionSpec


def test_a_spec_is_a_sequence_but_no_tuple():
    spec = P("x", None, ("y", "z"))
    assert not isinstance(spec, tuple)
    assert (len(spec), list(spec), spec[0], spec[1:]) == (3, ["x", None, ("y", "z")], "x", (None, ("y", "z")))
    assert "x" in spec
    assert "y" not in spec
    assert (spec.index(("x",)), spec.count(None)) == (0, 1)
    with pytest.raises(ValueError):
        spec.index("q")
    with pytest.raises(TypeError):
        sorted([P("x"), P("y")])


def test_specs_add_up():
    assert P("x") + P("y") is P("x", "y")
    more = ("y", "z")
    assert P("x") + more is P("x", "y", "z")
    assert more + P("x") is P("y", "z", "x")
    assert P("x", unreduced={"a"}) + P(unreduced={"b"}) is P("x", unreduced={"a", "b"})
    with pytest.raises(TypeError):
        P("x") + 3
    with pytest.raises(TypeError):
        3 + P("x")


def test_names_are_not_checked_before_a_mesh_is_known():
    assert P("nope", "nope").axes == ("nope", "nope")


def test_padded_and_trimmed():
    assert P("x").padded(3) is P("x", None, None)
    assert P("x", None).padded(2) is P("x", None)
    assert P(None, "x", None).trimmed() is P(None, "x")
    assert P(None, None).trimmed() is P()
    assert P("x", UNCONSTRAINED).trimmed() is P("x", UNCONSTRAINED)
    assert P("x", unreduced={"y"}).padded(2).unreduced == {"y"}
    with pytest.raises(errors.RankError, match="2 entries, but the array has 1 dim"):
        P("x", None).padded(1)


def test_update_replaces_parts():
    assert P("x").update(unreduced={"y"}) is P("x", unreduced={"y"})
    assert P("x", unreduced={"y"}).update(partitions=("z",)) is P("z", unreduced={"y"})


@given(specs, st.integers(0, 3))
def test_padding_and_trimming_keep_the_meaning(spec, more):
    padded = spec.padded(len(spec) + more)
    assert len(padded) == len(spec) + more
    assert padded.trimmed() is spec.trimmed()


@given(specs)
def test_equal_specs_are_one_object(spec):
    assert P(*spec) is spec
    assert P(*[list(part) if isinstance(part, tuple) else part for part in spec]) is spec
    assert copy.copy(spec) is copy.deepcopy(spec) is pickle.loads(pickle.dumps(spec)) is spec
    assert P(*spec.entries) is spec


def test_a_spec_that_left_the_cache_is_still_the_one():
    spec = P("x", "y")
    spec_module._cached.cache_clear()
    assert P("x", "y") is spec


def test_unused_specs_go_away():
    P("gone")
    spec_module._cached.cache_clear()
    gc.collect()
    assert not any(key[0] == ("gone",) for key in list(spec_module._specs._live))


def test_specs_do_not_change():
    with pytest.raises(AttributeError, match="cannot assign to field 'partitions'"):
        P("x").partitions = ()
    with pytest.raises(errors.ImmutableError, match="cannot delete field 'entries'"):
        del P("x").entries
    with pytest.raises(AttributeError):
        P("x").anything = 1


@pytest.mark.parametrize(
    ("make", "error", "base", "text"),
    [
        (
            lambda: P(("x", ("y",))),
            errors.NestedSpecError,
            ValueError,
            (
                "A tuple inside PartitionSpec cannot contain a nested tuple. "
                "Got partition: ('x', ('y',)) and the nested tuple: ('y',)"
            ),
        ),
        (lambda: P(3), errors.SpecEntryError, TypeError, "cannot take 3 of type int"),
        (lambda: P(("x", None)), errors.SpecEntryError, TypeError, "cannot take None of type NoneType"),
        (lambda: P(P("x")), errors.SpecEntryError, TypeError, "cannot take P('x',) of type PartitionSpec"),
        (lambda: P({"x": 1}), errors.SpecEntryError, TypeError, "cannot take {'x': 1} of type dict"),
        (
            lambda: P("x", unreduced={"x"}),
            errors.SpecOverlapError,
            ValueError,
            (
                "partitions cannot overlap with unreduced axes passed to PartitionSpec. "
                "Got partitions: ('x',) and unreduced axes: frozenset({'x'})"
            ),
        ),
        (lambda: P("x", reduced={"x"}), errors.SpecOverlapError, ValueError, "overlap with reduced axes"),
        (lambda: P(unreduced={"x"}, reduced={"x"}), errors.SpecOverlapError, ValueError, "cannot overlap"),
        (lambda: P(unreduced="y"), errors.SpecEntryError, TypeError, "should of type `frozenset` or `set`"),
        (lambda: P(reduced={None}), errors.SpecEntryError, TypeError, "reduced axes of PartitionSpec are names"),
    ],
)
def test_bad_entries_are_named(make, error, base, text):
    with pytest.raises(error) as caught:
        make()
    assert isinstance(caught.value, base)
    assert text in str(caught.value)


def test_unconstrained_is_one_object():
    assert repr(UNCONSTRAINED) == "UNCONSTRAINED"
    assert P.UNCONSTRAINED is UNCONSTRAINED
    assert pickle.loads(pickle.dumps(UNCONSTRAINED)) is copy.deepcopy(UNCONSTRAINED) is UNCONSTRAINED
