"""Memory kinds as users meet them: where results are, what is refused, and what JAX does."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuplace
import cuplace.numpy as cnp
from cuplace import NamedSharding, P, device_put, lax, typeof
from cuplace.memory import Space
from cuplace.runtime.config import config
from cuplace.runtime.platform import Platform
from cuplace.sharding import SingleDeviceSharding

KINDS = ("device", "pinned_host", "unpinned_host")
HOST_KINDS = KINDS[1:]
MIXED = (
    "memory_space of all inputs passed to `{}` must be the same. Got one operand with type: {} and another operand "
    "with type: {}"
)
MISMATCH = (
    "Memory kinds passed to jax.jit does not match memory kind on the respective arg. Got jit memory kind: {}, "
    "arg memory kind: {} for arg type: {}"
)


class World:
    """The arrays that expressions of the table are about; the names are JAX's where there is one."""

    def __init__(self, platform: Platform) -> None:
        self.d = platform.devices[0]
        self.mesh = cuplace.make_mesh((8,), ("x",), devices=platform.devices)
        self.S = NamedSharding(self.mesh, P("x"))
        self.H = self.S.with_memory_kind("pinned_host")
        self.x = device_put(np.arange(8, dtype=np.float32), self.S)
        self.h = device_put(self.x, self.H)
        single = SingleDeviceSharding(self.d, memory_kind="pinned_host")
        self.hs = device_put(np.arange(4, dtype=np.float32), single)
        self.u = cnp.arange(8.0)
        self.h0 = device_put(np.float32(1), single)
        self.names = {
            **vars(self), "np": np, "jnp": cnp, "jax": cuplace, "j": cuplace.jit, "Space": Space, "P": P, "lax": lax,
            "NamedSharding": NamedSharding, "put": device_put,
        }  # fmt: skip

    def evaluate(self, expression: str) -> Any:
        return eval(expression, dict(self.names))


NAMED = [
    # What JAX 0.10.2 gives: the kind of memory, the type, whether it is committed.
    ("h", "pinned_host", "float32<host>[8@x]"),
    ("h + 1", "pinned_host", "float32<host>[8@x]"),
    ("h + h", "pinned_host", "float32<host>[8@x]"),
    ("h + np.float32(1)", "pinned_host", "float32<host>[8@x]"),
    ("h + jnp.float32(1)", "pinned_host", "float32<host>[8@x]"),
    ("jnp.sin(h)", "pinned_host", "float32<host>[8@x]"),
    ("h.sum()", "pinned_host", "float32<host>[]"),
    ("jnp.concatenate([h, h])", "pinned_host", "float32<host>[16@x]"),
    ("jnp.zeros_like(h)", "pinned_host", "float32<host>[8@x]"),
    ("jnp.zeros(8, device=H)", "pinned_host", "float32<host>[8@x]"),
    ("jnp.arange(8.0, device=H)", "pinned_host", "float32<host>[8@x]"),
    ("hs + jnp.float32(1)", "pinned_host", "float32<host>[4]"),
    ("hs[0]", "pinned_host", "float32<host>[]"),
    ("hs[1:3]", "pinned_host", "float32<host>[2]"),
    ("jnp.sort(hs)", "pinned_host", "float32<host>[4]"),
    ("hs @ hs", "pinned_host", "float32<host>[]"),
    ("jnp.cumsum(hs)", "pinned_host", "float32<host>[4]"),
    ("hs.astype(int)", "pinned_host", "int32<host>[4]"),
    ("hs > 1", "pinned_host", "bool<host>[4]"),
    ("hs ** 2", "pinned_host", "float32<host>[4]"),
    ("jnp.stack([hs, hs])", "pinned_host", "float32<host>[2,4]"),
    ("put(x, Space.Host)", "pinned_host", "float32<host>[8@x]"),
    ("put(u, Space.Host)", "pinned_host", "float32<host>[8]"),
    ("put(h, Space.Device)", "device", "float32[8@x]"),
    ("put(np.ones(3, 'float32'), Space.Host)", "pinned_host", "float32<host>[3]"),
    ("put(u, Space.Device)", "device", "float32[8]"),
    ("put(h)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: a + 1)(h)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a, b: a * b)(h, 2.0)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: a)(h)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: a + 1, out_shardings=H)(x)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: a + 1, out_shardings=S)(h)", "device", "float32[8@x]"),
    ("j(lambda a: a + 1, in_shardings=H)(h)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: put(a * 2, H) + 1)(x)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: put(a * 2, Space.Host) + 1)(x)", "pinned_host", "float32<host>[8@x]"),
    ("j(lambda a: put(a * 2, Space.Device) + 1)(h)", "device", "float32[8@x]"),
    ("j(lambda a: put(a, S) + 1)(h)", "device", "float32[8@x]"),
    ("j(lambda a: put(a, S) + 1, donate_argnums=0)(put(x, H))", "device", "float32[8@x]"),
    ("j(lambda a: put(a, Space.Host) * 2)(u)", "pinned_host", "float32<host>[8]"),
    ("lax.scan(lambda c, y: (c + put(y, Space.Device), y), jnp.float32(0), hs)[0]", "device", "float32[]"),
    ("h.addressable_shards[1].data", "pinned_host", "float32<host>[1]"),
    ("jax.reshard(h, NamedSharding(mesh, P(None)))", "pinned_host", "float32<host>[8]"),
    ("jax.reshard(x, NamedSharding(mesh, P(None), memory_kind='pinned_host'))", "device", "float32[8]"),
    ("h.copy()", "pinned_host", "float32<host>[8@x]"),
]

NO_TARGET = (
    "`jax.device_put` only accepts `None`, `jax.sharding.Sharding`, `jax.Device`, `Format`, `jax.memory.Space` or "
    "a pytree of these values. Received invalid value: {}"
)

REFUSED = [
    # What JAX 0.10.2 refuses, with the first line of what it says.
    ("x + h", MIXED.format("add", "float32[8@x]", "float32<host>[8@x]")),
    ("h + x", MIXED.format("add", "float32<host>[8@x]", "float32[8@x]")),
    ("u + h", MIXED.format("add", "float32[8]", "float32<host>[8@x]")),
    ("h + np.ones(8, 'float32')", MIXED.format("add", "float32<host>[8@x]", "float32[8]")),
    ("jnp.concatenate([h, x])", MIXED.format("concatenate", "float32<host>[8@x]", "float32[8@x]")),
    ("j(lambda a, b: a + b)(x, h)", MIXED.format("add", "float32[8@x]", "float32<host>[8@x]")),
    ("j(lambda a: a + 1, in_shardings=H)(x)", MISMATCH.format("pinned_host", "device", "float32[8@x]")),
    ("j(lambda a: a + 1, in_shardings=H)(u)", MISMATCH.format("pinned_host", "device", "float32[8]")),
    ("j(lambda a: a + 1, in_shardings=S)(h)", MISMATCH.format("device", "pinned_host", "float32<host>[8@x]")),
    ("put(h, 'pinned_host')", NO_TARGET.format("pinned_host")),
]

OURS = [
    # Where JAX does something by accident, or says nothing.
    ("h0 + 1", "pinned_host", "float32<host>[]"),  # JAX moves it to the device, unasked
    ("hs.mean()", "pinned_host", "float32<host>[]"),  # likewise
    ("put(h, d)", "device", "float32[8]"),  # in JAX an array of the type of host memory
    ("put(x, S.with_memory_kind('unpinned_host')) + 1", "unpinned_host", "float32<host>[8@x]"),  # JAX: moved likewise
    ("j(lambda a: a + 1, in_shardings=H)(np.ones(8, 'float32'))", "pinned_host", "float32<host>[8@x]"),  # likewise
    ("jnp.where(h > 0, h, 0)", "pinned_host", "float32<host>[8@x]"),  # an error in JAX
    ("put(u, d) * h0", "device", "float32[8]"),
]


@pytest.mark.parametrize(("expression", "kind", "type"), [*NAMED, *OURS])
def test_results_are_where_they_are_in_jax(platform: Platform, expression: str, kind: str, type: str) -> None:
    world = World(platform)
    result = world.evaluate(expression)
    assert (result.sharding.memory_kind, str(typeof(result))) == (kind, type)
    assert result.committed
    plain = {**world.names, "H": world.S, "h": world.x, "hs": device_put(np.arange(4, dtype=np.float32), world.d)}
    plain["h0"] = device_put(np.float32(1), world.d)
    np.testing.assert_allclose(result, eval(expression, plain), rtol=1e-6)  # what the same gives on devices


@pytest.mark.parametrize(("expression", "line"), REFUSED)
def test_what_jax_refuses_is_refused_with_its_words(platform: Platform, expression: str, line: str) -> None:
    with pytest.raises(ValueError) as raised:
        World(platform).evaluate(expression)
    assert str(raised.value).splitlines()[0] == line


def test_two_kinds_of_host_memory_are_not_mixed_either(platform: Platform) -> None:
    world = World(platform)
    unpinned = device_put(world.h, world.S.with_memory_kind("unpinned_host"))
    with pytest.raises(cuplace.errors.MemorySpaceError, match="One is in memory of kind pinned_host, the other in unp"):
        world.h + unpinned


# --- devices, shardings, spaces ---------------------------------------------------------------------------


def test_a_device_has_three_memories(platform: Platform) -> None:
    device = platform.devices[3]
    assert [memory.kind for memory in device.addressable_memories()] == list(KINDS)
    assert device.default_memory() is device.memory("device") is device.memory
    pinned = device.memory("pinned_host")
    assert pinned is device.memory("pinned_host")
    assert (repr(pinned), repr(device.memory)) == (f"Memory({device} pinned_host)", f"Memory({device})")
    assert (pinned.platform, pinned.process_index) == (device.platform, 0)
    assert pinned.addressable_by_devices() == [device]
    assert device.default_memory_kind == "device"
    assert (device.memory.on_host, pinned.on_host) == (False, True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda device, mesh: device.memory("bogus"),
        lambda device, mesh: SingleDeviceSharding(device, memory_kind="bogus"),
        lambda device, mesh: NamedSharding(mesh, P("x"), memory_kind="bogus"),
        lambda device, mesh: NamedSharding(mesh, P("x")).with_memory_kind("bogus"),
    ],
)
def test_other_kinds_are_refused_with_the_words_of_jax(platform: Platform, ask: Callable[..., Any]) -> None:
    device, name = platform.devices[0], platform.devices[0].device_kind
    with pytest.raises(ValueError) as raised:
        ask(device, cuplace.make_mesh((8,), ("x",)))
    assert str(raised.value) == (
        f"Could not find memory addressable by device {name}. Device {name} can address the following memory kinds: "
        "device, pinned_host, unpinned_host. Got memory kind: bogus"
    )


def test_spaces_are_those_of_jax() -> None:
    assert [(space.name, space.value, repr(space)) for space in Space] == [
        ("Device", 1, "MemorySpace.Device"), ("Host", 2, "MemorySpace.Host"), ("Any", 3, "MemorySpace.Any"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"Received invalid value: MemorySpace\.Any"):
        device_put(1.0, Space.Any)


def test_a_space_is_a_target_for_trees_and_under_a_mesh(platform: Platform) -> None:
    world = World(platform)
    tree = device_put({"a": world.x, "b": np.float32([1, 2])}, Space.Host)
    assert {name: leaf.sharding.memory_kind for name, leaf in tree.items()} == dict.fromkeys("ab", "pinned_host")
    with cuplace.set_mesh(world.mesh):
        placed = device_put(np.ones(8, np.float32), Space.Host)
    assert placed.sharding == NamedSharding(world.mesh, P(), memory_kind="pinned_host")
    assert typeof(placed).memory_space is Space.Host
    assert typeof(world.x).memory_space is Space.Device


# --- values and lives -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_host_arrays_are_read_in_place_and_live_as_long_as_their_views(platform: Platform, kind: str) -> None:
    place = SingleDeviceSharding(platform.devices[1], memory_kind=kind)
    values = np.arange(1000, dtype=np.float32)
    x = device_put(values, place) * 2
    view = np.asarray(x)
    (buffer,) = x._live()
    assert np.shares_memory(view, buffer.array)
    assert not view.flags.writeable
    del buffer
    x.delete()
    others = [device_put(np.zeros(1000, np.float32), place) + 1 for _ in range(5)]
    np.testing.assert_array_equal(view, values * 2)
    assert float(others[-1][0]) == 1
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1


def test_host_memory_is_counted_apart_and_does_not_count_for_the_limit(platform: Platform) -> None:
    device = platform.devices[0]
    config.update("max_device_bytes", 5000)
    before = device.memory_stats()["bytes_in_use"]
    places = {kind: SingleDeviceSharding(device, memory_kind=kind) for kind in HOST_KINDS}
    kept = [device_put(np.zeros(2000, np.float32), place) for place in places.values()]
    assert device.memory_stats()["bytes_in_use"] == before
    assert [device.memory(kind).stats()["bytes_in_use"] for kind in HOST_KINDS] == [8000, 8000]
    assert "bytes_limit" not in device.memory("pinned_host").stats()
    with pytest.raises(MemoryError):
        device_put(kept[0], device)
    kept.clear()
    platform.scheduler.park()
    assert [device.memory(kind).stats()["bytes_in_use"] for kind in HOST_KINDS] == [0, 0]


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_donated_arrays_are_consumed_across_kinds(platform: Platform, kind: str) -> None:
    device = platform.devices[0]
    place = SingleDeviceSharding(device, memory_kind=kind)
    x = device_put(np.arange(6, dtype=np.float32), place)
    moved = device_put(x, device, donate=True)
    assert x.is_deleted()
    back = cuplace.jit(lambda a: device_put(a, place) + 1, donate_argnums=0)(moved)
    assert moved.is_deleted()
    np.testing.assert_array_equal(back, np.arange(6, dtype=np.float32) + 1)
    again = cuplace.jit(lambda a: a * 2, donate_argnums=0)(back)
    assert back.is_deleted()
    np.testing.assert_array_equal(again, (np.arange(6, dtype=np.float32) + 1) * 2)
    assert again.sharding.memory_kind == kind


def test_a_pickled_host_array_comes_back_to_its_memory(platform: Platform) -> None:
    x = World(platform).h
    back = pickle.loads(pickle.dumps(x))
    assert back.sharding == x.sharding
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_numpy_takes_host_arrays_by_dlpack_without_a_copy(platform: Platform, kind: str) -> None:
    x = device_put(np.arange(5, dtype=np.float32), SingleDeviceSharding(platform.devices[0], memory_kind=kind))
    taken = np.from_dlpack(x)
    np.testing.assert_array_equal(taken, np.arange(5))
    assert np.shares_memory(taken, np.asarray(x))
    pinned, cpu = (3, 0), (1, 0)  # kDLCUDAHost, kDLCPU
    assert x.__dlpack_device__() == (pinned if (platform.name, kind) == ("cuda", "pinned_host") else cpu)
    for asked in (None, x.__dlpack_device__(), cpu):
        told = _device_told_by(x.__dlpack__(max_version=(1, 0), dl_device=asked))
        assert told == (x.__dlpack_device__() if asked is None else asked)
    copied = x.__dlpack__(max_version=(1, 0), copy=True)
    assert _device_told_by(copied) == cpu
    with pytest.raises(BufferError):
        x.__dlpack__(max_version=(1, 0), dl_device=(2, 0))


def _device_told_by(capsule: Any) -> tuple[int, int]:
    """The device in a versioned capsule: version, context, deleter, flags and the address of the data come before."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    device = (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor_versioned") + 40)
    return device[0], device[1]


# --- loops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_loops_run_on_host_memory_and_bring_elements_to_the_device(platform: Platform, kind: str) -> None:
    place = SingleDeviceSharding(platform.devices[0], memory_kind=kind)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    xs, start = device_put(values, place), device_put(np.zeros(3, np.float32), place)
    carry, ys = lax.scan(lambda c, y: (c + y, c * y), start, xs)
    assert carry.sharding.memory_kind == ys.sharding.memory_kind == kind
    np.testing.assert_array_equal(carry, values.sum(0))
    np.testing.assert_array_equal(ys, np.cumsum(np.vstack([np.zeros(3), values[:-1]]), 0, dtype=np.float32) * values)

    def step(total: Any, weights: Any) -> Any:
        total = total + device_put(weights, Space.Device) * 2
        return total, device_put(total, Space.Host)

    total, history = lax.scan(step, cnp.zeros(3), device_put(values, Space.Host))
    assert (total.sharding.memory_kind, history.sharding.memory_kind) == ("device", "pinned_host")
    np.testing.assert_array_equal(total, values.sum(0) * 2)
    np.testing.assert_array_equal(history, np.cumsum(values, 0, dtype=np.float32) * 2)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_loops_over_a_mesh_move_elements_to_the_devices_and_back(platform: Platform, kind: str) -> None:
    world = World(platform)
    there = world.S.with_memory_kind(kind)
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    layers = device_put(values, NamedSharding(world.mesh, P(None, "x"), memory_kind=kind))

    def layer(x: Any, weights: Any) -> Any:
        x = x * 0.5 + device_put(weights, Space.Device)
        return x, device_put(x, there)

    last, all_of_them = cuplace.jit(lambda x, ws: lax.scan(layer, x, ws))(world.x, layers)
    x, wanted = np.arange(8, dtype=np.float32), []
    for weights in values:
        x = x * np.float32(0.5) + weights
        wanted.append(x)
    assert (last.sharding.memory_kind, all_of_them.sharding.memory_kind) == ("device", kind)
    np.testing.assert_array_equal(last, x)
    np.testing.assert_array_equal(all_of_them, np.stack(wanted))


def test_one_program_computes_on_both_sides_at_once(platform: Platform) -> None:
    world = World(platform)
    a, b, both = cuplace.jit(lambda x, h: (x + 1, h * 2, device_put(h, Space.Device) + x))(world.x, world.h)
    assert [y.sharding.memory_kind for y in (a, b, both)] == ["device", "pinned_host", "device"]
    values = np.arange(8, dtype=np.float32)
    for result, wanted in zip((a, b, both), (values + 1, values * 2, values * 2), strict=True):
        np.testing.assert_array_equal(result, wanted)


# --- order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_work_on_host_memory_does_not_wait_and_is_waited_for(platform: Platform, kind: str) -> None:
    """In both directions: the strand waits for a copy that is held, and copies wait for the strand."""
    device, other = platform.devices[:2]
    place = SingleDeviceSharding(device, memory_kind=kind)
    latch = platform.scheduler.hold(device.compute)
    x = device_put(np.arange(64, dtype=np.float32), device) + 1
    host = device_put(x, place)
    doubled = host * 2
    back = device_put(doubled, other) + 3
    free = device_put(np.ones(4, np.float32), SingleDeviceSharding(other, memory_kind=kind)) + 1
    np.testing.assert_array_equal(free, np.full(4, 2))  # what is not behind the latch goes on
    assert not any(y.is_ready() for y in (x, host, doubled, back))
    latch.release()
    wanted = (np.arange(64, dtype=np.float32) + 1) * 2
    np.testing.assert_array_equal(back, wanted + 3)
    np.testing.assert_array_equal(doubled, wanted)


class Step:
    """One thing that a random program does to one of its arrays, and what NumPy says of it."""

    def __init__(self, name: str, which: int, kind: str, spec: Any, place: int) -> None:
        self.name, self.which, self.kind, self.spec, self.place = name, which, kind, spec, place

    def __repr__(self) -> str:
        return f"Step({self.name!r}, {self.which}, {self.kind!r}, {self.spec}, {self.place})"


STEPS = st.builds(
    Step, st.sampled_from(["put", "put", "add", "jit", "double", "transpose", "delete", "donate", "inside"]),
    st.integers(0, 3), st.sampled_from(KINDS), st.sampled_from([P("x"), P(None, "x"), P()]), st.integers(0, 1),
)  # fmt: skip


@cuplace.jit
def _jitted(a: Any) -> Any:
    return cnp.sin(a) * 2.0 + a


@pytest.mark.order
@hypothesis.settings(max_examples=4)
@given(steps=st.lists(STEPS, min_size=6, max_size=14))
def test_random_programs_over_all_memories_give_the_values_of_numpy(platform: Platform, steps: list[Step]) -> None:
    meshes = [cuplace.make_mesh((4,), ("x",), devices=platform.devices[4 * i : 4 * i + 4]) for i in range(2)]
    arrays: list[Any] = []
    truth: list[np.ndarray] = []
    for i in range(4):
        values = np.arange(64, dtype=np.float32).reshape(8, 8) + i
        arrays.append(device_put(values, NamedSharding(meshes[i % 2], P("x"), KINDS[i % 3])))
        truth.append(values)
    for step in steps:
        x, values = arrays[step.which], truth[step.which]
        target = NamedSharding(meshes[step.place], step.spec, step.kind)
        if step.name == "put":
            arrays[step.which] = device_put(x, target)
        elif step.name == "donate":
            arrays[step.which] = device_put(x, target, donate=True)
        elif step.name == "add":
            arrays[step.which], truth[step.which] = x + x, values + values
        elif step.name == "double":
            arrays[step.which], truth[step.which] = x * 2 - 1, values * 2 - 1
        elif step.name == "jit":
            arrays[step.which], truth[step.which] = _jitted(x), np.sin(values) * np.float32(2) + values
        elif step.name == "transpose":
            arrays[step.which], truth[step.which] = x.T, values.T
        elif step.name == "inside":
            inside = NamedSharding(x.sharding.mesh, step.spec, step.kind)
            arrays[step.which] = cuplace.jit(lambda a, inside=inside: device_put(a + 1, inside))(x)
            truth[step.which] = values + 1
        else:
            arrays[step.which] = device_put(values + 5, target)
            truth[step.which] = values + 5
            x.delete()
    for x, values in zip(arrays, truth, strict=True):
        np.testing.assert_allclose(np.asarray(x), values, rtol=1e-5)
