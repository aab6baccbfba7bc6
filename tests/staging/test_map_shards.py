"""map_shards: a function of the user's for each shard, on every platform; with CUDA kernels on cuda."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cuplace
import cuplace.numpy as cnp
from cuplace import NamedSharding, P, ShapeDtypeStruct, errors, map_shards
from cuplace.array.put import device_put
from tests.array.places import numbers, on, places
from tests.memory import address_of

DOUBLE = r"""
extern "C" __global__ void twice(const float* x, float* y, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""


def at_once(platform):
    """Whether functions are called during the call of map_shards."""
    return platform.name == "cuda"


def failure_of(call, platform):
    """The error of a call: raised by itself where functions are called at once, else where its result is read."""
    if at_once(platform):
        with pytest.raises(Exception) as caught:
            call()
    else:
        result = call()
        with pytest.raises(Exception) as caught:
            cuplace.block_until_ready(result)
    return caught.value


# ---------------------------------------------------------------------- what it computes


def folded(x):
    return x * 2 - x[:, ::-1]


@pytest.mark.order
def test_each_shard_by_itself_in_a_chain_of_moves(platform):
    at = places(platform)
    value = numbers(8, 16)
    x = device_put(value, on(at.full, "x"))
    for target in (on(at.grid, "y", "x"), on(at.a, None, "x"), on(at.b), on(at.reverse, "x")):
        parts = [(shard.index, folded(value[shard.index])) for shard in x.addressable_shards]
        x = device_put(map_shards(folded, x), target)
        value = np.empty_like(value)
        for index, part in parts:
            value[index] = part
    np.testing.assert_array_equal(x, value)


def test_once_for_each_shard_in_mesh_order(platform):
    x = device_put(numbers(8), on(places(platform).reverse, "x"))
    calls = []
    y = map_shards(lambda x: calls.append(float(x[0])) or x + 0, x)
    y.block_until_ready()
    assert sorted(calls) == list(range(8))
    if at_once(platform):
        assert calls == list(range(8))
    assert y.sharding == x.sharding
    assert y.committed


def test_what_follows_is_whole_on_each_device(platform):
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x"))
    u = cnp.arange(3, dtype="float32")
    seen = []

    def f(x, rest, k):
        seen.append((rest["u"].shape, rest["host"].shape, k))
        return x * k + rest["u"].sum() + rest["host"].sum()

    y = map_shards(f, x, {"u": u, "host": np.float32([1, 2])}, 3)
    np.testing.assert_array_equal(y, numbers(8) * 3 + 6)
    assert seen == [((3,), (2,), 3)] * 8
    there = device_put(numbers(3), platform.devices[3])
    np.testing.assert_array_equal(map_shards(lambda u, x: u + x, u, there), numbers(3) * 2)


def test_without_a_commitment_results_have_none(platform):
    y = map_shards(lambda x: x + 1, cnp.arange(3))
    assert (y.committed, y.devices()) == (False, {platform.devices[0]})
    np.testing.assert_array_equal(y, [1, 2, 3])
    with cuplace.default_device(platform.devices[2]):
        assert map_shards(lambda x: x + 1, np.float32([1])).devices() == {platform.devices[2]}
    with cuplace.set_mesh(places(platform).a):
        z = map_shards(lambda x: x + 1, np.float32([1]))
    assert z.devices() == set(platform.devices[:4])


# ---------------------------------------------------------------------- results of other shapes


def test_results_may_have_any_shape_and_structure(platform):
    at = places(platform)
    x = device_put(numbers(8, 4), on(at.full, "x"))
    whole = NamedSharding(at.full, P())
    out = {
        "sums": ShapeDtypeStruct((8,), np.float32),
        "pair": (x, ShapeDtypeStruct((2, 4), np.int32, sharding=whole)),
    }

    def f(x):
        return {"pair": (x + 1, (x * 0).astype("int32").repeat(2, axis=0)), "sums": x.sum(axis=1)}

    got = map_shards(f, x, out_shape=out)
    np.testing.assert_array_equal(got["sums"], numbers(8, 4).sum(axis=1))
    np.testing.assert_array_equal(got["pair"][0], numbers(8, 4) + 1)
    assert (got["sums"].sharding.spec, got["pair"][1].sharding) == (P("x"), whole)
    np.testing.assert_array_equal(got["pair"][1], np.zeros((2, 4)))
    columns = map_shards(
        lambda x: x.T.copy(), x, out_shape=ShapeDtypeStruct((4, 8), "float32"), out_shardings=on(at.full, None, "x")
    )
    np.testing.assert_array_equal(columns, numbers(8, 4).T)
    with cuplace.set_mesh(at.full):
        assert map_shards(lambda x: x.T.copy(), x, out_shape=columns, out_shardings=P(None, "x")).shape == (4, 8)


def test_a_function_of_nothing_makes_arrays(platform):
    at = places(platform)
    sharding = on(at.a, "x")

    def make():
        if platform.name == "cuda":
            import cupy

            return cupy.arange(2, dtype="float32")
        return np.arange(2, dtype="float32")

    x = map_shards(make, out_shape=ShapeDtypeStruct((8,), "float32", sharding=sharding))
    assert x.sharding == sharding
    np.testing.assert_array_equal(x, [0, 1] * 4)
    with pytest.raises(errors.OutShapeError, match="no array that the result could be like"):
        map_shards(make)
    assert map_shards(lambda x: (), x, out_shape=()) == ()


def test_results_that_do_not_fit(platform):
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x"))
    for f, text in [
        (lambda x: x.astype("int8"), "py.ndarray int8[1], expected an array float32[1], a shard of float32[8@x]."),
        (lambda x: x.repeat(2), "py.ndarray float32[2], expected"),
        (lambda x: (x, x), "returned ('array', 'array'), expected an array"),
        (lambda x: None, "returned None, expected an array"),
        (lambda x: 2.0, "returned an object of type <class 'float'>, expected"),
    ]:
        error = failure_of(lambda f=f: map_shards(f, x), platform)
        assert isinstance(error, errors.KernelResultError)
        assert text in str(error)
    for out, text in [((8,), "has no shape and dtype"), ("float32", "has no shape and dtype")]:
        with pytest.raises(errors.OutShapeError, match=text):
            map_shards(lambda x: x, x, out_shape=out)
    with pytest.raises(errors.IndivisibleError):
        map_shards(lambda x: x, x, out_shape=ShapeDtypeStruct((3,), "float32"))
    with pytest.raises(errors.RankError):
        map_shards(lambda x: x, x, out_shape=ShapeDtypeStruct((), "float32"))
    np.testing.assert_array_equal(x, numbers(8))


# ---------------------------------------------------------------------- where it runs


def test_arrays_on_other_devices_are_the_pages_error(platform):
    at = places(platform)
    a, b = device_put(numbers(4), on(at.a, "x")), device_put(numbers(4), on(at.b, "x"))

    def step(p, q):
        return p + q

    with pytest.raises(ValueError, match="Received incompatible devices for jitted computation") as caught:
        map_shards(step, a, b)
    text = str(caught.value)
    assert "Got argument p of " in text
    assert "step with shape float32[4@x] and with device ids [0, 1, 2, 3]" in text
    assert "argument q of" in text
    assert "Move one of them first: q = device_put(q, p.sharding)" in text
    with pytest.raises(ValueError, match="and explicit output sharding with device ids"):
        map_shards(lambda x: x, a, out_shardings=on(at.b, "x"))
    with cuplace.set_mesh(at.b), pytest.raises(ValueError, match="and the context mesh with device ids"):
        map_shards(lambda x: x, a)


def test_inside_jit_is_an_error(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))

    @cuplace.jit
    def step(y):
        return map_shards(lambda z: z, y)

    with pytest.raises(errors.KernelInsideJitError, match="Call map_shards between jitted functions"):
        step(x)
    with pytest.raises(errors.KernelInsideJitError):
        cuplace.jit(lambda y: y + map_shards(lambda z: z, x))(x)
    with pytest.raises(errors.NotCallableError):
        map_shards(x, x)


def test_nothing_waits(platform):
    """With the compute streams held, the call returns; other devices go on; the values are right in the end."""
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x"))
    x.block_until_ready()
    latches = [platform.scheduler.hold(device.compute) for device in platform.devices[:4]]
    y = map_shards(lambda x: x + 1, x)
    z = device_put(map_shards(lambda x: x * 2, y), on(at.reverse, "x"))
    assert not y.is_ready()
    other = map_shards(lambda x: x + 5, device_put(numbers(4), on(at.b, "x")))
    np.testing.assert_array_equal(other, numbers(4) + 5)
    assert not z.is_ready()
    for latch in latches:
        latch.release()
    np.testing.assert_array_equal(z, (numbers(8) + 1) * 2)


def test_from_two_threads(platform):
    at = places(platform)
    found = {}

    def run(mesh):
        x = device_put(numbers(8), on(mesh, "x"))
        for _ in range(5):
            x = map_shards(lambda x: x + 1, x)
        found[mesh] = np.asarray(x)

    threads = [threading.Thread(target=run, args=(mesh,)) for mesh in (at.a, at.b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in found.values():
        np.testing.assert_array_equal(value, numbers(8) + 5)


# ---------------------------------------------------------------------- memory


def add_one(x):
    x += 1
    return x


def test_donated_arrays_are_written_in_place(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    before = [address_of(buffer.array) for buffer in x._buffers]
    y = map_shards(add_one, x, donate_argnums=0)
    assert x.is_deleted()
    if at_once(platform):
        assert [address_of(buffer.array) for buffer in y._buffers] == before
    for _ in range(3):
        y = map_shards(add_one, y, donate_argnums=(0,))
    np.testing.assert_array_equal(y, numbers(8) + 4)
    with pytest.raises(errors.DeletedArrayError, match="donated"):
        map_shards(add_one, x)


@pytest.mark.order
def test_nobody_sees_what_is_written_in_place(platform):
    """Not those who share a buffer, view it on the host, or copy it just now; not the user's own memory."""
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x")) * 1
    part = device_put(x, on(at.a, "x"))
    half = cuplace.make_array_from_single_device_arrays(
        (4,), NamedSharding(at.b, P("x")), [x.addressable_shards[i].data for i in range(4, 8)]
    )
    copy = device_put(x, on(at.reverse, "x"))
    y = map_shards(add_one, x, donate_argnums=0)
    np.testing.assert_array_equal(part, numbers(8))
    np.testing.assert_array_equal(copy, numbers(8))
    assert half.is_deleted() or np.array_equal(half, numbers(8)[4:])
    view = np.asarray(y)
    z = map_shards(add_one, y, donate_argnums=0)
    np.testing.assert_array_equal(view, numbers(8) + 1)
    np.testing.assert_array_equal(z, numbers(8) + 2)
    host = numbers(4)
    mine = device_put(host, platform.devices[0], may_alias=True)
    np.testing.assert_array_equal(map_shards(add_one, mine, donate_argnums=0), numbers(4) + 1)
    np.testing.assert_array_equal(host, numbers(4))


def test_an_array_is_donated_once(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    with pytest.raises(errors.DonationError, match="donated and given a second time"):
        map_shards(lambda x, y: x + y, x, x, donate_argnums=0)
    with pytest.raises(errors.StaticArgumentError, match="but 1 arguments"):
        map_shards(add_one, x, donate_argnums=1)
    np.testing.assert_array_equal(x, numbers(8))


def test_returned_inputs_are_copied(platform):
    x = device_put(numbers(8, 2), on(places(platform).full, "x"))
    y = map_shards(lambda x: x, x)
    assert not {address_of(b.array) for b in x._buffers} & {address_of(b.array) for b in y._buffers}
    z = map_shards(lambda x: x.reshape(2, 1)[::-1].reshape(1, 2)[:, ::-1], x)
    x.delete()
    for one in (y, z):
        np.testing.assert_array_equal(one, numbers(8, 2))
        assert all(buffer.array.flags.c_contiguous for buffer in one._buffers)


def test_memory_of_results_comes_back(platform):
    """A loop that rebinds its array needs no more memory than two of its turns, and gives all of it back."""
    devices = platform.devices[:2]
    sharding = on(cuplace.make_mesh((2,), ("x",), devices=devices), "x")
    x = device_put(np.zeros(2048, np.float32), sharding)
    x.block_until_ready()
    before = [device.memory_stats()["bytes_in_use"] for device in devices]
    for _ in range(50):
        x = map_shards(lambda x: x + 1, x)
    np.testing.assert_array_equal(x, np.full(2048, 50))
    for device, start in zip(devices, before, strict=True):
        assert device.memory_stats()["bytes_in_use"] == start
    del x
    platform.scheduler.park()
    assert all(device.memory_stats()["bytes_in_use"] == 0 for device in devices)


def test_inputs_are_read_only_where_numpy_has_them(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    if at_once(platform):
        return
    error = failure_of(lambda: map_shards(add_one, x), platform)
    assert isinstance(error, ValueError)
    assert "read-only" in str(error)
    np.testing.assert_array_equal(x, numbers(8))


# ---------------------------------------------------------------------- failures


def test_an_error_of_the_function_names_the_users_line(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))

    def broken(x):
        raise KeyError("boom")

    error = failure_of(lambda: map_shards(broken, x), platform)
    assert isinstance(error, KeyError)
    (note,) = set(error.__notes__)
    assert "raised by" in note
    assert "broken" in note
    assert "test_map_shards.py" in note
    np.testing.assert_array_equal(map_shards(lambda x: x + 1, x), numbers(8) + 1)


def test_the_error_of_an_input_is_that_of_the_result(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))

    def broken(x):
        raise KeyError("boom")

    def call():
        return map_shards(lambda x: x + 1, map_shards(broken, x))

    assert isinstance(failure_of(call, platform), KeyError)


def test_a_failure_half_way_leaves_all_healthy(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    y = x + 0

    def fails_late(x):
        x += 1
        if float(x[0]) > 4:
            raise KeyError("late")
        return x

    assert isinstance(failure_of(lambda: map_shards(fails_late, y, donate_argnums=0), platform), KeyError)
    assert y.is_deleted()
    np.testing.assert_array_equal(x, numbers(8))
    np.testing.assert_array_equal(map_shards(add_one, x, donate_argnums=0), numbers(8) + 1)


@pytest.mark.parametrize("platform", ["cpu", "sim"], indirect=True)
def test_check_order_follows_what_functions_touch(platform):
    at = places(platform)
    with cuplace.check_order():
        x = device_put(numbers(8), on(at.full, "x"))
        y = map_shards(lambda x, y: x + y, x, x * 2)
        z = map_shards(add_one, device_put(y, on(at.reverse, "x")), donate_argnums=0)
        np.testing.assert_array_equal(z, numbers(8) * 3 + 1)
    (record,) = [r for r in list(platform.scheduler.log.recent)[-40:] if "add_one" in r.name][:1]
    assert record.kind == "compute"


# ---------------------------------------------------------------------- CUDA kernels


def kernels_of(platform):
    """Two kernels of the user's: twice its argument into a second one, and a function that squares."""
    if platform.name != "cuda":
        return lambda x, y: np.multiply(x, 2, out=y), np.square, np
    import cupy

    raw = cupy.RawKernel(DOUBLE, "twice")
    square = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
    return lambda x, y: raw((1,), (64,), (x, y, np.int64(x.size))), square, cupy


@pytest.mark.order
def test_kernels_find_their_device_and_stream_current(platform):
    twice, square, xp = kernels_of(platform)
    seen = []

    def f(x):
        if xp is not np:
            seen.append((xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream().ptr))
        y = xp.empty_like(x)
        twice(x, y)
        return square(y) + xp.sqrt(x)

    x = device_put(numbers(16), on(places(platform).full, "x"))
    y = map_shards(f, device_put(x * 1, on(places(platform).reverse, "x")))
    np.testing.assert_allclose(y, 4 * numbers(16) ** 2 + np.sqrt(numbers(16)), rtol=1e-6)
    if xp is not np:
        assert seen == [(device.gpu, device.compute.lane.ptr) for device in platform.devices[::-1]]
        assert (xp.cuda.runtime.getDevice(), xp.cuda.get_current_stream().ptr) == (0, 0)


# ---------------------------------------------------------------------- memory of the host, guards


def test_arrays_in_memory_of_the_host(platform):
    """Functions get NumPy arrays on every platform, and all is in one memory."""
    at = places(platform)
    there = on(at.a, "x").with_memory_kind("pinned_host")
    x = device_put(numbers(8), there)
    seen = []
    y = map_shards(lambda x: seen.append(type(x)) or x * 2, x)
    np.testing.assert_array_equal(y, numbers(8) * 2)
    assert set(seen) == {np.ndarray}
    assert y.sharding == there
    np.testing.assert_array_equal(map_shards(add_one, y, donate_argnums=0), numbers(8) * 2 + 1)
    with pytest.raises(errors.MemorySpaceError, match="in different memories, device and pinned_host"):
        map_shards(lambda x, y: x + y, x, device_put(numbers(8), on(at.a, "x")))


def test_guards_judge_what_follows(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    u = cnp.arange(3)
    with cuplace.transfer_guard("disallow"):
        np.testing.assert_array_equal(cuplace.device_get(map_shards(lambda x: x + 1, x)), numbers(8) + 1)
        for follows in (u, numbers(3)):
            with pytest.raises(errors.TransferGuardError):
                map_shards(lambda x, u: x, x, follows)
