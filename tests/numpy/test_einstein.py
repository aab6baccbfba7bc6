from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import cuplace.numpy as jnp
from cuplace.placement.axes import AxisType
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, grid, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)

SIZES = dict(zip("abcdefgh", (2, 3, 1, 4, 2, 3, 2, 2), strict=True))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[np.ndarray]]:
    """Subscripts and operands that fit them."""
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used)))[: draw(st.integers(0, len(used)))]
    operands = [counted(*[SIZES[c] for c in term]) % 5 - 2 for term in terms]
    return f"{','.join(terms)}->{output}" if draw(st.booleans()) else ",".join(terms), operands


@only_cpu
@given(call=calls())
@settings(max_examples=60)
def test_sums_have_numpy_s_values(call: tuple[str, list[np.ndarray]], platform: Platform) -> None:
    subscripts, operands = call
    np.testing.assert_allclose(np.asarray(jnp.einsum(subscripts, *operands)), np.einsum(subscripts, *operands))


@only_cpu
@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...i,...i->...", [(2, 4), (2, 4)]),
        ("...ij,jk", [(5, 2, 3), (3, 4)]),
        ("b...i,b...i->b...", [(2, 5, 3), (2, 5, 3)]),
        (" i j , j k -> i k ", [(2, 3), (3, 4)]),
        ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 2), (2, 5)]),
        ("i,j->ij", [(2,), (3,)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ],
)
def test_usual_sums(subscripts: str, shapes: list[tuple[int, ...]], platform: Platform) -> None:
    operands = [counted(*shape) % 5 - 2 for shape in shapes]
    np.testing.assert_allclose(np.asarray(jnp.einsum(subscripts, *operands)), np.einsum(subscripts, *operands))


def test_sharded_operands(platform: Platform) -> None:
    a, b = counted(8, 4) % 5, counted(4, 8) % 3
    assert spec_of(jnp.einsum("ij,jk->ik", put(a, "x"), put(b, None, "y"))) == P("x", "y")
    assert spec_of(jnp.einsum("ij,jk->ki", put(a, "x"), put(b, None, "y"))) == P("y", "x")
    wanted = NamedSharding(grid(), P("y", "x"))
    out = jnp.einsum("ij,jk->ki", put(a, "x", "y"), put(b, "y"), out_sharding=wanted)
    np.testing.assert_array_equal(np.asarray(out), (a @ b).T)
    assert out.sharding.is_equivalent_to(wanted, 2)
    auto = jnp.einsum("ij,jk,kl->il", *[put(v, "x", "y", kind=AxisType.Auto) for v in (a, b, a)])
    np.testing.assert_array_equal(np.asarray(auto), a @ b @ a)


@only_cpu
@pytest.mark.parametrize(
    ("subscripts", "count", "text"),
    [
        ("ij,jk", 1, "got letters for 2 operands"),
        ("ijk", 1, "for an operand of 2 dimensions"),
        ("ij->ik", 1, "repeats a letter, or has one of its own"),
        ("ij->ii", 1, "repeats a letter, or has one of its own"),
        ("i1", 1, "for an operand of 2 dimensions"),
    ],
)
def test_letters_that_do_not_fit(subscripts: str, count: int, text: str, platform: Platform) -> None:
    with pytest.raises(ValueError, match=text):
        jnp.einsum(subscripts, *[np.ones((2, 2), np.float32)] * count)


@only_cpu
def test_letters_come_first(platform: Platform) -> None:
    with pytest.raises(ValueError, match="takes its letters first"):
        jnp.einsum(np.ones(2, np.float32), [0])
    with pytest.raises(ValueError, match=r"^Size of label 'i' for operand 1 \(3\) does not match previous terms \(2\)"):
        jnp.einsum("i,i", np.ones(2, np.float32), np.ones(3, np.float32))


@only_cpu
@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,ij->ij", [(1, 3), (2, 3)]), ("ij,ij->i", [(2, 1), (2, 3)]), ("ij,ij", [(1, 1), (2, 3)]),
        ("ij,jk,kj->ik", [(2, 3), (1, 4), (4, 3)]), ("i,i,i->i", [(1,), (1,), (1,)]), ("ij,ij->j", [(1, 3), (0, 3)]),
    ],
)  # fmt: skip
def test_dimensions_of_size_1_are_stretched(
    subscripts: str, shapes: list[tuple[int, ...]], platform: Platform
) -> None:
    operands = [np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    got = jnp.einsum(subscripts, *operands, optimize=True)
    np.testing.assert_allclose(np.asarray(got), np.einsum(subscripts, *operands))
