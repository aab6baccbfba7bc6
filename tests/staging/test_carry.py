from __future__ import annotations

import optree
import pytest

from cuplace.array.type import ArrayType
from cuplace.errors import CarryTypeError
from cuplace.placement.abstract_mesh import AbstractMesh
from cuplace.placement.spec import P
from cuplace.staging.carry import check_carry, same_structure

MESH = AbstractMesh((8,), ("x",))
F4, F3, I4 = ArrayType((4,), "float32"), ArrayType((3,), "float32"), ArrayType((4,), "int32")
SHARDED = ArrayType((8,), "float32", spec=P("x"), mesh=MESH)


@pytest.mark.parametrize(
    ("given", "returned", "detail"),
    [
        (F4, F3, "has type float32[4] but the corresponding output carry component has type float32[3], so the shapes"),
        (F4, I4, "has type int32[4], so the dtypes do not match"),
        (SHARDED, ArrayType((8,), "float32"), "has type float32[8@x] but the corresponding output carry component"),
    ],
)
def test_types_must_stay(given, returned, detail):
    with pytest.raises(CarryTypeError) as caught:
        check_carry(["c"], [given], [returned])
    assert str(caught.value).startswith(
        "scan body function carry input and carry output must have equal types, but they differ:\n\n"
        "The input carry c has type "
    )
    assert detail in str(caught.value)


def test_parts_of_a_carry_are_components_and_all_that_differ_are_listed():
    with pytest.raises(CarryTypeError) as caught:
        check_carry(["c['a']", "c['b']", "x"], [F4, F4], [F3, I4, F4])
    assert str(caught.value).count("The input carry component c[") == 2


def test_weakness_and_equal_types_do_not_matter():
    check_carry(["c"], [F4], [F4.update(weak_type=True)])


def test_structure_must_stay():
    leaf = optree.tree_structure(0)
    same_structure(["c"], leaf, 3)
    with pytest.raises(CarryTypeError, match=r"must have the same pytree structure.*\n\nThe input carry c is a"):
        same_structure(["c"], leaf, (1, 2))
    with pytest.raises(CarryTypeError, match="has structure"):
        same_structure(["c[0]"], optree.tree_structure((0, 0)), (1, 2, 3))
