from __future__ import annotations

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.placement.axes import AxisType
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec as P
from cuplace.runtime.platform import Platform
from tests.numpy.places import counted, grid, put, spec_of

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


def values(*shape: int) -> np.ndarray:
    return counted(*shape) % 5 - 2


MATMUL_SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)),
    ((6, 5, 2, 3), (6, 1, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((6, 5, 2, 3), (5, 3, 4)), ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
]  # fmt: skip


@only_cpu
@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES)
def test_matmul_of_all_ranks(a: tuple[int, ...], b: tuple[int, ...], platform: Platform) -> None:
    x, y = values(*a), values(*b)
    np.testing.assert_array_equal(np.asarray(jnp.matmul(x, y)), np.matmul(x, y))


@only_cpu
def test_the_kin_of_dot_have_numpy_s_values(platform: Platform) -> None:
    a, b, c = values(2, 3, 4), values(5, 4, 6), values(5, 4)
    np.testing.assert_array_equal(np.asarray(jnp.dot(a, b)), np.dot(a, b))
    np.testing.assert_array_equal(np.asarray(jnp.dot(a, 2)), a * 2)
    np.testing.assert_array_equal(np.asarray(jnp.dot(a, c[0])), np.dot(a, c[0]))
    np.testing.assert_array_equal(np.asarray(jnp.inner(a, c)), np.inner(a, c))
    np.testing.assert_array_equal(np.asarray(jnp.inner(3, c)), 3 * c)
    np.testing.assert_array_equal(np.asarray(jnp.outer(c, a)), np.outer(c, a))
    z = (c[0] + 1j).astype(np.complex64)
    np.testing.assert_array_equal(np.asarray(jnp.vdot(z, c[1])), np.vdot(z, c[1]))
    for axes in (0, 1, ([2], [1]), (2, 1), ((-1,), (-2,))):
        truth = np.tensordot(a, b if axes != 1 else values(4, 2), axes=axes)
        np.testing.assert_array_equal(np.asarray(jnp.tensordot(a, b if axes != 1 else values(4, 2), axes)), truth)


@pytest.mark.parametrize("spec_b", [P(), P("y"), P(None, "y"), P("y", "x"), P(("x", "y"))])
@pytest.mark.parametrize("spec_a", [P(), P("x"), P(None, "y"), P("x", "y"), P(None, ("y", "x"))])
def test_products_of_sharded_matrices(spec_a: P, spec_b: P, platform: Platform) -> None:
    a, b = values(8, 16), values(16, 8)
    out = jnp.matmul(put(a, *spec_a, kind=AxisType.Auto), put(b, *spec_b, kind=AxisType.Auto))
    np.testing.assert_array_equal(np.asarray(out), a @ b)
    wanted = NamedSharding(grid(), P("y", "x"))
    explicit = jnp.matmul(put(a, *spec_a), put(b, *spec_b), out_sharding=wanted)
    np.testing.assert_array_equal(np.asarray(explicit), a @ b)
    assert explicit.sharding.is_equivalent_to(wanted, 2)


def test_batched_products_can_be_asked_for_a_layout(platform: Platform) -> None:
    a, b = values(4, 8), values(2, 8, 4)
    wanted = NamedSharding(grid(), P("x", None, "y"))
    out = jnp.matmul(put(a, None, "y"), put(b, None, "y"), out_sharding=wanted)
    np.testing.assert_array_equal(np.asarray(out), a @ b)
    assert out.sharding.is_equivalent_to(wanted, 3)


def test_free_dimensions_keep_their_axes(platform: Platform) -> None:
    a, b = put(values(8, 4), "x"), put(values(4, 8), None, "y")
    assert spec_of(a @ b) == P("x", "y")
    assert spec_of(jnp.dot(a, np.ones((4, 3), np.float32))) == P("x")
    assert spec_of(jnp.outer(put(values(8), "x"), np.ones(3, np.float32))) == P("x")
    assert float(jnp.vdot(put(values(8), "x"), np.ones(8, np.float32))) == values(8).sum()


def test_open_layouts_must_be_settled(platform: Platform) -> None:
    a, b = put(values(8, 8), None, "x"), put(values(8, 8), "x")
    with pytest.raises(errors.ShardingTypeError, match=r"Please specify the output sharding via the `out_sharding`"):
        a @ b
    with pytest.raises(ValueError, match="Using PartitionSpec when you are not under a mesh context"):
        jnp.matmul(a, b, out_sharding=P("y"))
    with cuplace.set_mesh(grid()):
        out = jnp.matmul(a, b, out_sharding=P("y"))
    assert spec_of(out) == P("y")
    np.testing.assert_array_equal(np.asarray(out), values(8, 8) @ values(8, 8))
    with pytest.raises(TypeError, match="`out_sharding` argument only supports"):
        jnp.matmul(a, b, out_sharding="y")


@only_cpu
def test_dtypes(platform: Platform) -> None:
    small = np.int8([100, 100])
    assert int(jnp.matmul(np.int8([1, 2]), small)) == 44
    assert jnp.matmul(small, small, preferred_element_type="int32").tolist() == 20000
    assert jnp.matmul(np.ones(4096, np.float16), np.full(4096, 0.5, np.float16)).tolist() == 2048
    assert jnp.matmul(np.bool_([1]), np.bool_([1])).tolist() is True


@only_cpu
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jnp.matmul(values(2, 3), values(2, 3)), TypeError, r"to have the same shape, got \(3,\) and \(2,\)"),
        (lambda: jnp.matmul(values(2, 3), 3), ValueError, "matmul input operand 1 must have ndim at least 1, but"),
        (lambda: jnp.matmul(values(2, 2, 3), values(3, 3, 3)), ValueError, "Incompatible types for matmul arguments"),
        (lambda: jnp.tensordot(values(2), values(2), 2), TypeError, "must not exceed the number of dimensions"),
        (lambda: jnp.tensordot(values(2, 2), values(2), ([0, 1], [0])), TypeError, "axes lists to have equal length"),
        (lambda: jnp.matmul([1], [1]), TypeError, "matmul requires ndarray or scalar arguments, got <class 'list'>"),
    ],
)
def test_operands_that_are_refused(call: object, error: type, text: str, platform: Platform) -> None:
    with pytest.raises(error, match=text):
        call()
