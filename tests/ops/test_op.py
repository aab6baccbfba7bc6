"""What holds for every record, found by looking through the modules that hold them."""

from __future__ import annotations

import copy
from types import ModuleType

import numpy as np
import pytest

from cuplace.array.type import ArrayType
from cuplace.ops import contraction, convert, creation, elementwise, indexing, manipulation, reductions, reshape
from cuplace.ops.factors import Factors, Kind, Problem, Rule
from cuplace.ops.op import Cost, Op, OutType
from cuplace.ops.rule import infer
from cuplace.placement.box import Box
from tests.ops.shards import typed

MODULES: list[ModuleType] = [
    contraction, convert, creation, elementwise, indexing, manipulation, reductions, reshape,
]  # fmt: skip
RECORDS = [(m.__name__, k, r) for m in MODULES for k, r in vars(m).items() if isinstance(r, Op) and k.isupper()]


@pytest.mark.parametrize("record", [r for _, _, r in RECORDS], ids=[k for _, k, _ in RECORDS])
def test_records_are_frozen_and_compared_by_identity(record: Op) -> None:
    with pytest.raises(AttributeError):
        record.name = "other"
    assert record == record
    assert record != copy.copy(record)
    assert repr(record) == f"Op({record.name})"


def test_names_are_jax_s_and_rarely_shared() -> None:
    names = [r.name for _, _, r in RECORDS]
    assert {n for n in names if names.count(n) > 1} <= {"gather"}


def test_a_new_operation_is_one_record() -> None:
    """A moving average over two neighbours: along the last dimension it must be whole, else it passes through."""

    def out_type(types: tuple[ArrayType, ...], params: object) -> OutType:
        shape = types[0].shape
        return OutType((*shape[:-1], shape[-1] - 1), types[0].dtype)

    def labels(types: tuple[ArrayType, ...], params: object) -> Factors:
        rows = tuple(range(types[0].ndim - 1))
        return Factors(((*rows, "along"),), (*rows, None), {"along": Kind.WHOLE})

    def text(problem: Problem) -> str:
        return f"{problem.name} needs whole rows, got {problem.types[problem.operand]}"

    average = Op("average", out_type, Rule(labels, whole=text), lambda xp, x: (x[..., 1:] + x[..., :-1]) / 2)
    assert str(infer(average, [typed((4, 8), "x")], {})[0]) == "float32[4@x,7]"
    with pytest.raises(TypeError, match=r"^average needs whole rows, got float32\[4,8@x\]$"):
        infer(average, [typed((4, 8), None, "x")], {})


def test_local_parameters() -> None:
    sharding_free = manipulation.BROADCAST.local_params({"shape": (4, 8), "out_sharding": object()}, ((),), _box())
    assert sharding_free == {"shape": (2, 4)}
    assert elementwise.ADD.local_params({"out_sharding": None}, ((), ()), _box()) == {}


def _box() -> Box:
    return Box((2, 4), (4, 8))


INTO = [r for _, _, r in RECORDS if r.into is not None]


@pytest.mark.parametrize("record", INTO, ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "bool"])
def test_results_can_be_written_into_memory_that_is_there(record: Op, dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    if record is contraction.DOT_GENERAL:
        calls = [
            ((x, x), {"dims": contraction.DotDims((1,), (1,))}),
            ((x, x), {"dims": contraction.DotDims((0,), (0,))}),
        ]
    else:
        calls = [((x,), {"axes": axes, "keepdims": keep}) for axes in ((0,), (0, 1), ()) for keep in (False, True)]
    for arrays, params in calls:
        expected = record.compute(np, *arrays, **params)
        if np.asarray(expected).dtype != x.dtype:  # truths of numbers: operands of these records are bool
            continue
        out = np.empty_like(expected)
        record.into(np, out, *arrays, **params)
        np.testing.assert_array_equal(out, expected)


def test_costs_add() -> None:
    assert Cost(1, 2) + Cost(3, 4) == Cost(4, 6)


def test_elementwise_work_counts_every_byte_once() -> None:
    types = (ArrayType((4, 8), np.dtype("float32")), ArrayType((), np.dtype("float32")))
    assert elementwise.ADD.cost(types, OutType((4, 8), np.dtype("float32")), {}) == Cost(32, 4 * (32 + 1 + 32))
