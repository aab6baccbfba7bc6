"""Which calls are transfers, in which direction, and whether they were asked for: as JAX 0.10.2 has it, but for what
is listed as ours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import P, errors
from cuplace.runtime.context import default_device, set_mesh
from cuplace.testing import faults
from tests.array.places import numbers, on, places

VALUES = numbers(8)
UP, ACROSS, DOWN = "host-to-device", "device-to-device", "device-to-host"


class Arrays:
    def __init__(self, platform):
        self.at = places(platform)
        self.devices = platform.devices
        self.u = jnp.arange(8.0)
        self.s = cuplace.device_put(np.float32(2))
        self.i = cuplace.device_put(np.int32(2))
        self.x1 = cuplace.device_put(VALUES, platform.devices[1])
        self.full = cuplace.device_put(VALUES, on(self.at.full, "x"))
        self.part = cuplace.device_put(VALUES, on(self.at.a, "x"))


def on_default(v):
    with default_device(v.devices[3]):
        return v.u + v.u


double = cuplace.jit(lambda x: x * 2)

# name: (call, what JAX says at the level disallow, and at disallow_explicit)
AS_JAX = {
    "device_put of NumPy": (lambda v: cuplace.device_put(VALUES), None, UP),
    "device_put of NumPy to a device": (lambda v: cuplace.device_put(VALUES, v.devices[1]), None, UP),
    "device_put of NumPy to a mesh": (lambda v: cuplace.device_put(VALUES, on(v.at.full, "x")), None, UP),
    "device_put of a number": (lambda v: cuplace.device_put(1.0), None, UP),
    "device_put to where it is": (lambda v: cuplace.device_put(v.full, v.full.sharding), None, None),
    "device_put without a target": (lambda v: cuplace.device_put(v.u), None, None),
    "device_put that commits": (lambda v: cuplace.device_put(v.u, v.devices[0]), None, None),
    "device_put to another device": (lambda v: cuplace.device_put(v.u, v.devices[1]), None, ACROSS),
    "device_put to another mesh": (lambda v: cuplace.device_put(v.part, on(v.at.b, "x")), None, ACROSS),
    "reshard": (lambda v: cuplace.reshard(v.full, on(v.at.full)), None, None),
    "reshard of NumPy": (lambda v: cuplace.reshard(VALUES, on(v.at.full)), UP, UP),
    "an array and NumPy": (lambda v: v.u + VALUES, UP, UP),
    "an array and a number": (lambda v: v.u + 1.0, UP, UP),
    "a function of NumPy": (lambda v: jnp.sin(VALUES), UP, UP),
    "a function of a number": (lambda v: jnp.sin(1.0), UP, UP),
    "asarray of NumPy": (lambda v: jnp.asarray(VALUES), UP, UP),
    "array of a list": (lambda v: jnp.array([1.0, 2.0]), UP, UP),
    "array of a number": (lambda v: jnp.array(1.0), UP, UP),
    "asarray on a device": (lambda v: jnp.asarray(VALUES, device=v.devices[1]), UP, UP),
    "float32 of a number": (lambda v: jnp.float32(1.0), UP, UP),
    "zeros": (lambda v: jnp.zeros(3), UP, UP),
    "full": (lambda v: jnp.full(3, 2.0), UP, UP),
    "zeros on a mesh": (lambda v: jnp.zeros(8, device=on(v.at.full, "x")), UP, UP),
    "zeros_like": (lambda v: jnp.zeros_like(v.u), UP, UP),
    "arange": (lambda v: jnp.arange(3), None, None),
    "an element": (lambda v: v.u[0], UP, UP),
    "elements at NumPy positions": (lambda v: v.u[np.array([0, 1], np.int32)], UP, UP),
    "jit of NumPy": (lambda v: double(VALUES), UP, UP),
    "jit of a number": (lambda v: double(2.0), UP, UP),
    "jit of an array": (lambda v: double(v.u), None, None),
    "jit that captures NumPy": (lambda v: cuplace.jit(lambda x: x + VALUES)(v.u), None, None),
    "jit with a number in it": (lambda v: cuplace.jit(lambda x: x + 1.0)(v.u), None, None),
    "jit that captures an array": (lambda v: cuplace.jit(lambda x: x + v.s)(v.x1), None, None),
    "in_shardings": (lambda v: cuplace.jit(lambda x: x, in_shardings=on(v.at.full, "x"))(v.u), ACROSS, ACROSS),
    "in_shardings of NumPy": (lambda v: cuplace.jit(lambda x: x * x, in_shardings=on(v.at.full))(VALUES), UP, UP),
    "out_shardings": (lambda v: cuplace.jit(lambda x: x * x, out_shardings=on(v.at.full, "x"))(v.u), ACROSS, ACROSS),
    "following to a mesh": (lambda v: v.u + v.full, ACROSS, ACROSS),
    "a number's array following": (lambda v: v.s + v.full, ACROSS, ACROSS),
    "one operand": (lambda v: -v.full, None, None),
    "a sum over the mesh": (lambda v: v.full.sum(), None, None),
    "iteration": (lambda v: list(v.u), None, None),
    "waiting": (lambda v: v.full.block_until_ready(), None, None),
    "asking whether it is ready": (lambda v: v.full.is_ready(), None, None),
    "shards": (lambda v: [s.data for s in v.full.addressable_shards], None, None),
    "a callback": (
        lambda v: cuplace.make_array_from_callback((8,), on(v.at.full, "x"), lambda i: VALUES[i]), UP, UP,
    ),
}  # fmt: skip

# What JAX says on a CPU, whose arrays the host reads in place: nothing. Here every platform judges as a GPU does.
READING = {
    "NumPy": lambda v: np.asarray(v.full),
    "a copy": lambda v: np.array(v.u),
    "float": lambda v: float(v.s),
    "int": lambda v: int(v.i),
    "complex": lambda v: complex(v.s),
    "bool": lambda v: bool(v.i),
    "an index": lambda v: [1, 2, 3][v.i],
    "item": lambda v: v.s.item(),
    "tolist": lambda v: v.full.tolist(),
    "repr": lambda v: repr(v.full),
    "str": lambda v: str(v.u),
    "format": lambda v: f"{v.s:.2f}",
    "bytes": lambda v: bytes(v.u),
    "pickle": lambda v: pickle.dumps(v.full),
    "DLPack": lambda v: np.from_dlpack(v.u),
    "a mask": lambda v: v.u[v.u > v.s],
    "nonzero": lambda v: jnp.nonzero(v.u),
    "iteration over shards": lambda v: list(v.full),
}

# Where JAX's accidents are not copied: a move goes from device to device (JAX: through the host), an uncommitted array
# is moved, and judged, wherever it is combined with what is elsewhere (JAX: depends on the shardings), and what slices
# say is part of the program (JAX: numbers from the host).
OURS = {
    "another layout": (lambda v: cuplace.device_put(v.full, on(v.at.full)), None, ACROSS),
    "another number of devices": (lambda v: cuplace.device_put(v.full, on(v.at.a, "x")), None, ACROSS),
    "following to a device": (lambda v: v.u + v.x1, ACROSS, ACROSS),
    "following to the default device": (on_default, ACROSS, ACROSS),
    "a slice": (lambda v: v.u[1:3], None, None),
}


def found(call, *args):
    """The direction that a guard told of; None where it allowed the call."""
    try:
        call(*args)
    except errors.TransferGuardError as error:
        return str(error).partition("Disallowed ")[2].partition(" ")[0]
    return None


@pytest.mark.parametrize("table", [AS_JAX, OURS], ids=["as JAX", "ours"])
def test_which_calls_are_transfers(platform, table):
    v = Arrays(platform)
    for name, (call, *expected) in table.items():
        for _ in range(2):  # the second time from all caches
            for level, direction in zip(("disallow", "disallow_explicit"), expected, strict=True):
                with cuplace.transfer_guard(level):
                    assert found(call, v) == direction, (name, level)
            call(v)


def test_reading_values_is_judged_each_time(platform):
    v = Arrays(platform)
    for name, call in READING.items():
        if name == "DLPack" and platform.name == "cuda":
            continue  # the memory itself is handed over, and NumPy does not take that of GPUs
        for _ in range(2):
            with cuplace.transfer_guard_device_to_host("disallow"):
                assert found(call, v) == DOWN, name
            with cuplace.transfer_guard_host_sync("disallow"):
                assert found(call, v) == "wait", name
            with cuplace.transfer_guard_host_to_device("disallow_explicit"):
                assert found(call, v) in (None, UP), name
            call(v)


def test_device_get_is_explicit(platform):
    v = Arrays(platform)
    with cuplace.transfer_guard("disallow"), cuplace.transfer_guard_host_sync("disallow"):
        np.testing.assert_array_equal(cuplace.device_get([v.full, "text"])[0], VALUES)
    with cuplace.transfer_guard_device_to_host("disallow_explicit"):
        assert found(cuplace.device_get, {"a": (v.full,)}) == DOWN


def test_waits_are_explicit_where_they_are_asked_for(platform):
    x = jnp.arange(8.0)
    with cuplace.transfer_guard_host_sync("disallow"):
        cuplace.block_until_ready([x])
    with cuplace.transfer_guard_host_sync("disallow_explicit"):
        assert found(cuplace.block_until_ready, [x]) == "wait"


def test_refused_calls_change_nothing(platform):
    v = Arrays(platform)
    jitted = cuplace.jit(lambda x, y: x + y, donate_argnums=0)
    moved = lambda *args, **options: cuplace.device_put(*args, v.devices[2], donate=True, **options)  # noqa: E731
    with platform.scheduler.log.record() as submissions, cuplace.transfer_guard("disallow_explicit"):
        assert found(moved, v.x1) == ACROSS
        assert found(moved, [v.u, v.full, VALUES]) == ACROSS
        assert found(jitted, v.u, VALUES) == UP
        assert found(jitted, v.u, v.x1) == ACROSS
    assert not submissions
    assert not any(x.is_deleted() for x in (v.x1, v.u, v.full))


def test_a_jitted_function_is_judged_at_each_call_and_placed_once(platform):
    v = Arrays(platform)
    f = cuplace.jit(lambda x, y: x + y)
    for _ in range(3):
        with cuplace.transfer_guard("disallow"):
            assert found(f, v.u, 1.0) == UP
            f(v.u, v.u)
            assert found(f, v.u, v.x1) == ACROSS
        f(v.u, 1.0)
        f(v.u, v.x1)
    info = f.cache_info()
    assert (info.traces, info.executables) == (2, 3)


def test_an_eager_function_runs_quickly_in_a_guard_only_where_nothing_moves(platform):
    v = Arrays(platform)
    with cuplace.transfer_guard("log"):
        for _ in range(3):
            v.u + v.u
            v.u + 1.0
    with cuplace.transfer_guard("disallow"):
        for _ in range(3):
            np.testing.assert_array_equal(cuplace.device_get(v.u + v.u), 2 * np.arange(8))
            assert found(lambda: v.u + 1.0) == UP
            assert found(lambda: 1.0 + v.u) == UP


def test_texts_of_moves_are_those_of_jax(platform):
    v = Arrays(platform)
    implicit, explicit = lambda: v.u + v.x1, lambda: cuplace.device_put(v.u, v.devices[1])
    for call, source in [(implicit, ""), (explicit, f"sharding={v.u.sharding}, ")]:
        with cuplace.transfer_guard("disallow_explicit"), pytest.raises(errors.TransferGuardError) as caught:
            call()
        assert str(caught.value).splitlines()[0] == (
            "INVALID_ARGUMENT: Disallowed device-to-device transfer: aval=ShapedArray(float32[8]), "
            f"{source}dst_sharding={v.x1.sharding}"
        )


def test_a_function_without_results_is_judged_by_its_operands(platform):
    nothing = cuplace.jit(lambda x, y: (), keep_unused=True)
    with cuplace.transfer_guard("disallow"):
        assert found(nothing, Arrays(platform).u, VALUES) in (None, UP)
        assert found(nothing, 1.0, 2) in (None, UP)


def test_text_of_reading_names_the_shard(platform):
    v = Arrays(platform)
    device = v.devices[0]
    for x, text in [
        (v.full, f"shape=(1), dtype=F32, device={device}"),
        (v.i, f"shape=(), dtype=S32, device={device}"),
        (v.u > v.u, f"shape=(8), dtype=PRED, device={device}"),
        (v.u.astype("bfloat16"), f"shape=(8), dtype=BF16, device={device}"),
        (v.u.astype("complex64"), f"shape=(8), dtype=C64, device={device}"),
        (v.u.astype("uint8"), f"shape=(8), dtype=U8, device={device}"),
    ]:
        with cuplace.transfer_guard("disallow"), pytest.raises(errors.TransferGuardError) as caught:
            np.asarray(x)
        assert str(caught.value).splitlines()[0] == f"INVALID_ARGUMENT: Disallowed device-to-host transfer: {text}"


def test_new_arrays_on_the_context_mesh_are_judged_alike(platform):
    v = Arrays(platform)
    with set_mesh(v.at.full), cuplace.transfer_guard("disallow"):
        assert found(jnp.asarray, VALUES) == UP
        assert found(lambda: cuplace.device_put(VALUES, P("x"))) is None
        assert found(lambda: v.u + v.u) == ACROSS


@pytest.mark.parametrize("platform", ["sim"], indirect=True)
@pytest.mark.sound_links
def test_copies_through_the_host_are_refused_where_a_pair_has_no_other_way(platform):
    v = Arrays(platform)
    moving = cuplace.jit(lambda x: x.sum(), out_shardings=on(v.at.full))
    other = on(v.at.b, "x")
    with cuplace.transfer_guard_host_bounce("disallow"):
        cuplace.device_put(v.part, other)
        moving(v.full)
    with faults(no_p2p=True):
        with cuplace.transfer_guard("disallow"):
            cuplace.device_put(v.part, other)
        with platform.scheduler.log.record() as submissions, cuplace.transfer_guard_host_bounce("disallow"):
            for _ in range(2):
                assert found(cuplace.device_put, [v.s, v.part], [None, other]) == "bounce"
                assert found(cuplace.reshard, v.full, on(v.at.full)) == "bounce"
                assert found(moving, v.full) == "bounce"
        assert not submissions
        moving(v.full)
        with cuplace.transfer_guard_host_bounce("disallow"):
            assert found(moving, v.full) == "bounce"


@pytest.mark.sound_links
@pytest.mark.parametrize("platform", ["cuda"], indirect=True)
def test_gpus_that_reach_each_other_do_not_bounce(platform):
    v = Arrays(platform)
    with cuplace.transfer_guard_host_bounce("disallow"):
        np.testing.assert_array_equal(cuplace.device_get(cuplace.device_put(v.full, on(v.at.full))), VALUES)


