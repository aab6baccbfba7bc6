from __future__ import annotations

import pytest

from cuplace.ops.factors import Factors, Kind, Problem, Rule, merging_text, no_objection, whole_text
from cuplace.placement.spec import PartitionSpec as P
from tests.ops.shards import typed, unplaced


def problem(*operands, out=(4, 8), **where) -> Problem:
    return Problem("add", operands, tuple(t.spec for t in operands), {}, out, **where)


def test_a_factor_passes_unless_something_else_is_said() -> None:
    factors = Factors((("i", "k"), ("k", None)), ("i",), {"k": Kind.REDUCE}, "sum")
    assert [factors.kind(label) for label in ("i", "k", "else")] == [Kind.PASS, Kind.REDUCE, Kind.PASS]


def test_the_text_of_a_disagreement_shows_specs_of_one_rank_and_leaves_scalars_out() -> None:
    text = merging_text(problem(typed((4, 8), "x", "y"), typed((8,), "x"), unplaced(())))
    assert text.splitlines()[0] == (
        "add got incompatible shardings for broadcasting: ('x', 'y'), (None, 'x')."
    )
    assert "reshard(y, x.sharding)" in text


def test_the_text_of_a_dimension_that_must_be_whole_names_it() -> None:
    text = whole_text(problem(typed((4, 8), "x"), typed((4, 8), None, "y"), operand=1, dim=1))
    assert text == "add needs dimension 1 of its operand unsharded. Got operand type: float32[4,8@y]"


def test_a_rule_merges_and_objects_to_nothing_by_default() -> None:
    rule = Rule(lambda types, params: Factors((), ()))
    assert (rule.same, rule.custom, rule.conflict, rule.whole) == (False, None, merging_text, whole_text)
    assert rule.refuse(problem(typed((4, 8), "x"))) is None
    assert no_objection(problem(typed((4, 8), "x"))) is None


def test_records_of_rules_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Factors((), ()).out = ("i",)
    assert problem(typed((4, 8), "x")).specs == (P("x", None),)
