"""Programs give NumPy's values however their operands lie over a mesh."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as jnp
from cuplace.placement.mesh import AxisType, make_mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from tests.array.places import numbers, on, places

MESHES = (((8,), ("x",)), ((2, 4), ("x", "y")), ((2, 2, 2), ("x", "y", "z")), ((4, 2), ("x", "y")))

UNARY = (
    lambda np_, a: np_.sin(a) * 0.5, lambda np_, a: a.T, lambda np_, a: a.max(axis=0), lambda np_, a: a.mean(axis=-1),
    lambda np_, a: a.reshape(-1), lambda np_, a: a[::2], lambda np_, a: np_.where(a > 0, a, -a), lambda np_, a: a + 1.5,
    lambda np_, a: a.sum(axis=0, keepdims=True), lambda np_, a: np_.maximum(a, 0.0),
)  # fmt: skip
BINARY = (
    lambda np_, a, b: a + b, lambda np_, a, b: a * b - a, lambda np_, a, b: np_.concatenate([a, b], axis=0),
    lambda np_, a, b: np_.matmul(a, np_.swapaxes(b, -1, -2)), lambda np_, a, b: a + b.sum(axis=-1, keepdims=True),
)  # fmt: skip


@st.composite
def layouts(draw, ndim):
    """A mesh by number, an order of devices, and a spec."""
    which = draw(st.integers(0, len(MESHES) - 1))
    names = draw(st.permutations(MESHES[which][1]))
    entries = [[] for _ in range(ndim)]
    for name in names[: draw(st.integers(0, len(names)))]:
        entries[draw(st.integers(0, ndim - 1))].append(name)
    return which, P(*(tuple(entry) for entry in entries))


@st.composite
def programs(draw):
    """A list of steps: (operation, operands by number)."""
    count, steps = 3, []
    for _ in range(draw(st.integers(1, 6))):
        operands = [draw(st.integers(0, count - 1)) for _ in range(2)]
        steps.append((draw(st.integers(0, len(UNARY) + len(BINARY) - 1)), operands))
        count += 1
    return steps


def evaluate(np_, steps, operands):
    """The values of all steps; operations that do not fit the shapes at hand become something simple."""
    values = list(operands)
    for which, (i, j) in steps:
        a, b = values[i], values[j]
        if a.ndim == 0 or a.shape[0] % 16:
            value = a * 2
        elif which < len(UNARY):
            value = UNARY[which](np_, a)
        elif a.shape == b.shape and a.ndim > 1:
            value = BINARY[which - len(UNARY)](np_, a, b)
        else:
            value = a - 1
        values.append(value)
    return values[len(operands) :]


@settings(max_examples=40)
@given(st.data())
def test_random_programs_on_random_layouts(platform, data):
    shape = data.draw(st.sampled_from([(16, 16), (16, 32), (32, 16, 16)]), "shape")
    steps = data.draw(programs(), "program")
    which, _ = data.draw(layouts(len(shape)), "mesh")
    sizes, names = MESHES[which]
    order = data.draw(st.permutations(range(8)), "devices")
    devices = [platform.devices[i] for i in order]
    mesh = make_mesh(sizes, names, (AxisType.Auto,) * len(sizes), devices=devices)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape, dtype=np.float32) for _ in range(3)]
    operands = [cuplace.device_put(values[0], NamedSharding(mesh, _spec(data, names, len(shape))))]
    operands += [
        cuplace.device_put(value, NamedSharding(mesh, _spec(data, names, len(shape))))
        if data.draw(st.booleans())
        else value
        for value in values[1:]
    ]
    expected = evaluate(np, steps, values)
    jitted = cuplace.jit(lambda *xs: evaluate(jnp, steps, xs))(*operands)
    eager = evaluate(jnp, steps, [jnp.asarray(x) for x in operands])
    for got in (jitted, eager):
        for found, value in zip(got, expected, strict=True):
            _check(found, value, mesh)


def _spec(data, names, ndim):
    entries = [[] for _ in range(ndim)]
    for name in data.draw(st.permutations(names))[: data.draw(st.integers(0, len(names)))]:
        entries[data.draw(st.integers(0, ndim - 1))].append(name)
    return P(*(tuple(entry) for entry in entries))


def _check(found, value, mesh):
    scale = max(float(np.abs(value).max(initial=0)), 1.0)
    assert found.shape == value.shape
    for shard in found.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data) / scale, value[shard.index] / scale, atol=2e-5)


def test_sharded_sums_are_combined_where_they_are_wanted(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.grid, "x", "y"))
    for axis, spec in ((0, P("y")), (1, P("x")), (None, P())):
        out = x.sum(axis=axis)
        assert out.sharding == NamedSharding(at.grid, spec)
        np.testing.assert_array_equal(np.asarray(out), numbers(8, 8).sum(axis=axis))
    y = cuplace.device_put(numbers(8, 8).T, on(at.grid, "y"))
    out = jnp.matmul(x, y, out_sharding=on(at.grid, "x", "y"))
    assert out.sharding == on(at.grid, "x", "y")
    np.testing.assert_array_equal(np.asarray(out), numbers(8, 8) @ numbers(8, 8).T)


def test_one_device_needs_no_moves(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.m0, "x"))
    with platform.scheduler.log.record() as submissions:
        y = cuplace.jit(lambda x: jnp.sin(x.T).sum(axis=0) + x[0])(x)
    assert [s.kind for s in submissions] == ["compute"]
    assert y.sharding.mesh is at.m0


def test_local_work_is_one_submission_a_device(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    f = cuplace.jit(lambda x: jnp.sin(x).sum(axis=1) * 2 + x.max(axis=1))
    f(x)
    with platform.scheduler.log.record() as submissions:
        f(x)
    assert [s.kind for s in submissions] == ["compute"] * 8
    assert len({s.device for s in submissions}) == 8


def test_host_operands_are_uploaded_in_the_pieces_that_are_needed(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), on(at.full, "x"))
    x + numbers(8, 8)
    with platform.scheduler.log.record() as submissions:
        x + numbers(8, 8)
    uploads = [s.nbytes for s in submissions if s.kind == "upload"]
    assert uploads == [32] * 8
    assert not [s for s in submissions if s.kind == "move"]


def test_a_replicated_value_is_cut_without_a_move(platform):
    at = places(platform)
    x = cuplace.device_put(numbers(8), on(at.full))
    f = cuplace.jit(lambda x: cuplace.device_put(x + 1, on(at.full, "x")) * 2)
    with platform.scheduler.log.record() as submissions:
        y = f(x)
    assert {s.kind for s in submissions} == {"compute"}
    assert y.sharding == on(at.full, "x")
    np.testing.assert_array_equal(np.asarray(y), (numbers(8) + 1) * 2)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()])
def test_results_on_auto_meshes(platform, spec):
    at = places(platform)
    x = cuplace.device_put(numbers(8, 8), NamedSharding(at.auto, spec))
    y = (x + x.T) @ x
    assert y.sharding.mesh is at.auto
    np.testing.assert_array_equal(np.asarray(y), (numbers(8, 8) + numbers(8, 8).T) @ numbers(8, 8))
