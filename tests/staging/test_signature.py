from __future__ import annotations

import pytest

from cuplace.staging.signature import Signature


def example(a, b=2, /, c=3, *rest, d=4):
    return a, b, c, rest, d


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 5), {"d": 6}), ((1, 5, 7, 8, 9), {}), ((1,), {"c": 0}), ((1, 2), {"c": 0, "d": 1})],
)
def test_values_reach_the_parameters_that_python_gives_them_to(args, kwargs):
    signature = Signature(example)
    assert signature.call(example, signature.bind(args, kwargs)) == example(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1,), {"a": 1}), ((1, 2, 3), {"c": 4}), ((1,), {"unknown": 1}), ((), {"b": 1})]
)
def test_calls_that_do_not_fit_raise_what_python_raises(args, kwargs):
    with pytest.raises(TypeError):
        Signature(example).bind(args, kwargs)


def test_too_many_arguments_are_refused_without_a_rest():
    with pytest.raises(TypeError, match="too many positional arguments"):
        Signature(lambda x: x).bind((1, 2), {})


def test_required_parameters_have_no_default():
    assert Signature(example).required == {"a"}
    assert Signature(lambda a, b, /, c, *, d, e=1: 0).required == {"a", "b", "c", "d"}
    assert Signature(example).names == ("a", "b", "c", "rest", "d")
