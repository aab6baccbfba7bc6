from __future__ import annotations

import collections
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace import errors
from cuplace.array import put
from cuplace.array.array import Array
from cuplace.array.put import block_until_ready, device_get, device_put
from cuplace.array.type import typeof
from cuplace.placement.mesh import make_mesh
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.runtime.config import config
from cuplace.runtime.context import default_device, set_mesh
from cuplace.runtime.platform import open_platform
from tests.array.places import numbers, on, places
from tests.runtime.streams import finish, used
from tests.transfer.shardings import transfers


def same_memory(x: Array, y: Array) -> bool:
    return x._buffers is y._buffers


class Subclass(np.ndarray):
    """A subclass of NumPy's array, as np.memmap is one."""


# --- host values


def test_a_host_value_without_target_is_uncommitted_on_the_default_device(platform):
    x = device_put(numbers(4))
    assert (x.committed, x.sharding) == (False, SingleDeviceSharding(platform.devices[0]))
    with default_device(platform.devices[3]):
        y = device_put(numbers(4))
    assert (y.committed, y.device) == (False, platform.devices[3])
    np.testing.assert_array_equal(y, numbers(4))


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (1, "int32", True),
        (1.5, "float32", True),
        (1j, "complex64", True),
        (True, "bool", False),
        (np.float32(2), "float32", False),
        (np.int8(2), "int8", False),
        (np.float16([1]), "float16", False),
        (np.int32([[1, 2]]).view(Subclass), "int32", False),
    ],
)
def test_the_type_of_host_values(platform, value, dtype, weak):
    x = device_put(value)
    assert (x.dtype, x.weak_type, x.shape) == (np.dtype(dtype), weak, np.shape(value))
    np.testing.assert_array_equal(np.asarray(x), np.asarray(value))


def test_64_bit_values_are_narrowed_once_told_for_a_line(platform):
    site = compile("device_put(value)", f"<one line on {platform.name} {id(platform)}>", "eval")

    def place(value):
        return eval(site, {"device_put": device_put, "value": value})

    with pytest.warns(errors.NarrowingWarning, match="float64 are narrowed to float32"):
        x = place(np.arange(3.0))
    assert x.dtype == np.float32
    assert place(np.arange(3.0)).dtype == np.float32
    with pytest.raises(OverflowError, match="does not fit into int32"):
        device_put(np.array([2**40]))
    with pytest.raises(OverflowError, match="Python int 1099511627776 too large to convert to int32"):
        device_put(2**40)
    config.update("enable_x64", True)
    assert device_put(np.array([2**40])).dtype == np.int64
    assert device_put(2**40).item() == 2**40


@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
@pytest.mark.parametrize("held", [False, True], ids=["at once", "behind other work"])
@pytest.mark.parametrize("spec", [("x",), (None, "x"), ()], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_values_that_are_narrowed_on_their_way_are_numpys(platform, dtype, spec, held):
    """The copies cast them, out of memory of any layout, as of the call."""
    values = np.abs(np.random.default_rng(0).normal(0, 1e5, (16, 48))).astype(dtype)[::2, ::-3]
    if values.dtype.kind in "fc":
        values[0, :3] = np.nan, np.inf, 1e-300
    expected = values.astype({"float64": "f", "int64": "i", "uint64": "u4", "complex128": "F"}[dtype])
    latches = [platform.scheduler.hold(device.upload) for device in platform.devices] if held else []
    placed = [device_put(values, target) for target in (on(places(platform).full, *spec), platform.devices[0])]
    values[...] = 0
    for latch in latches:
        latch.release()
    for x in placed:
        np.testing.assert_array_equal(np.asarray(x), expected, strict=True)


@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
def test_a_cast_that_fails_leaves_nothing(platform):
    at, values = places(platform), np.full((8, 8), 1e300)
    finish(platform)
    before = used(platform)
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        device_put(values, on(at.full, "x"))
    finish(platform)
    assert used(platform) == before
    np.testing.assert_array_equal(device_put(values / 1e300, on(at.full, "x")), np.ones((8, 8)))


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("abc", TypeError, "Argument 'abc' of type <class 'str'> is not a valid JAX type"),
        (object(), TypeError, "Cannot interpret value of type <class 'object'> as an abstract array"),
        (b"x", TypeError, "Cannot interpret value of type <class 'bytes'>"),
        (range(3), TypeError, "Cannot interpret value of type <class 'range'>"),
        ({1, 2}, TypeError, "Cannot interpret value of type <class 'set'>"),
        (np.array([None]), TypeError, "Dtype object is not a valid JAX array type"),
        (np.array(["a"]), TypeError, "is not a valid JAX array type"),
        (np.datetime64("2020"), TypeError, "is not a valid JAX array type"),
        (np.arange(3, dtype=">f4"), TypeError, "Dtype >f4 is not a valid JAX array type"),
        (np.ma.array([1.0, 2.0]), ValueError, "numpy masked arrays are not supported"),
    ],
)
def test_what_is_no_array_raises(platform, value, error, text):
    for target in (None, platform.devices[0], on(places(platform).full)):
        with pytest.raises(error) as caught:
            device_put(value, target)
        assert text in str(caught.value)


def test_a_numpy_array_is_taken_as_of_the_call(platform):
    values = numbers(8)
    latch = platform.scheduler.hold(platform.devices[0].upload)
    x = device_put(values, on(places(platform).full, "x"))
    values[:] = -1
    assert not x.is_ready()
    latch.release()
    np.testing.assert_array_equal(x, numbers(8))


# --- targets


def test_a_target_commits(platform):
    at = places(platform)
    for value in (numbers(8), device_put(numbers(8))):
        x = device_put(value, on(at.a, "x"))
        assert (x.committed, x.sharding) == (True, on(at.a, "x"))
        y = device_put(value, platform.devices[2])
        assert (y.committed, y.sharding) == (True, SingleDeviceSharding(platform.devices[2]))
        np.testing.assert_array_equal(x, y)


def test_without_a_target_an_array_comes_back_as_it_is(platform):
    u, x = device_put(numbers(3)), device_put(numbers(3), platform.devices[1])
    with default_device(platform.devices[5]):
        assert device_put(u) is u
        assert device_put(x, None) is x


def test_an_array_that_is_there_already(platform):
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x"))
    assert device_put(x, on(at.full, "x")) is x
    other_spec = device_put(numbers(8, 1), on(at.full, "x"))
    spelled_out = device_put(other_spec, on(at.full, "x", None))
    assert spelled_out is not other_spec
    assert spelled_out.sharding == on(at.full, "x", None)
    assert same_memory(spelled_out, other_spec)
    assert same_memory(device_put(x, on(at.auto, "x")), x)
    u = device_put(numbers(8))
    committed = device_put(u, platform.devices[0])
    assert committed is not u
    assert same_memory(committed, u)
    assert (u.committed, committed.committed) == (False, True)
    assert device_put(committed, platform.devices[0]) is not committed
    assert same_memory(device_put(u, on(at.m0)), u)


def test_arrays_that_share_all_memory_are_deleted_together(platform):
    u = device_put(numbers(8))
    committed = device_put(u, platform.devices[0])
    u.delete()
    assert committed.is_deleted()
    part = device_put(numbers(8), on(places(platform).full))
    single = device_put(part, platform.devices[3])
    part.delete()
    np.testing.assert_array_equal(single, numbers(8))


def test_may_alias_false_without_a_target_copies_in_place(platform):
    x = device_put(numbers(8), platform.devices[1])
    for one in (x, device_put(numbers(8)), device_put(numbers(8), on(places(platform).full, "x"))):
        copy = device_put(one, may_alias=False)
        assert (copy.committed, copy.sharding, copy is one) == (one.committed, one.sharding, False)
        one.delete()
        np.testing.assert_array_equal(np.asarray(copy), numbers(8))


def test_may_alias_false_copies(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    copy = device_put(x, x.sharding, may_alias=False)
    assert not {id(b) for b in x._buffers} & {id(b) for b in copy._buffers}
    x.delete()
    np.testing.assert_array_equal(copy, numbers(8))


@given(data=st.data())
def test_any_sharding_to_any_other(platform, data):
    shape, source, target = data.draw(transfers(platform.devices))
    x = device_put(device_put(numbers(*shape), source), target)
    assert x.sharding == target
    np.testing.assert_array_equal(x, numbers(*shape))
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, numbers(*shape)[shard.index])


def test_a_move_returns_at_once(platform):
    at = places(platform)
    x = device_put(numbers(8, 8), on(at.a, "x"))
    latch = platform.scheduler.hold(platform.devices[0].transfer_to(platform.devices[4]))
    y = device_put(x, on(at.b, None, "x"))
    assert not y.is_ready()
    others = make_mesh((2,), ("x",), devices=platform.devices[1:3])  # partitions of a GPU have a stream each for moves
    z = device_put(device_put(numbers(8, 8), on(others, "x")), on(others, None, "x")).block_until_ready()
    assert not y.is_ready()
    latch.release()
    np.testing.assert_array_equal(y, z)


def test_a_bare_spec_is_read_on_the_context_mesh(platform):
    at = places(platform)
    with pytest.raises(ValueError, match=r"Please set a mesh via `jax.set_mesh`"):
        device_put(numbers(8), P("x"))
    with set_mesh(at.full):
        x = device_put(numbers(8), P("x"))
        assert x.sharding == on(at.full, "x")
        assert device_put(x, P()).sharding == on(at.full)
        assert not device_put(numbers(8)).committed


@pytest.mark.parametrize("target", ["cpu", 0, np.float32(1)])
def test_what_is_no_place_raises(platform, target):
    for value in (numbers(4), device_put(numbers(4)), 1.0):
        with pytest.raises(ValueError, match=r"`jax.device_put` only accepts") as caught:
            device_put(value, target)
        assert f"Received invalid value: {target}\n" in str(caught.value)
    with pytest.raises(errors.InvalidTargetError, match="Mesh"):
        device_put(1.0, places(platform).full)


def test_a_sharding_that_does_not_fit_raises(platform):
    at = places(platform)
    for value in (numbers(7), device_put(numbers(7))):
        with pytest.raises(errors.IndivisibleError) as caught:
            device_put(value, on(at.full, "x"))
        assert str(caught.value).startswith(
            "Sharding spec ('x',) implies that array axis 0 is partitioned 8 times, but does not evenly divide the "
            "dimension size 7. Got shape: (7,) and sharding NamedSharding(mesh=AbstractMesh('x': 8, "
        )
        with pytest.raises(errors.RankError, match=r"Length of sharding.spec \(2\) must be equal to aval's ndim"):
            device_put(value, on(at.full, "x", None))
    with pytest.raises(errors.RankError):
        device_put(1.0, on(at.full, "x"))
    assert device_put(numbers(0, 3), on(at.full, "x")).shape == (0, 3)


def test_devices_of_another_platform_raise(platform):
    other = open_platform("sim" if platform.name == "cpu" else "cpu", 2)
    x = device_put(numbers(4))
    with pytest.raises(errors.ForeignPlatformError, match="Go through the host"):
        device_put(x, other.devices[0])
    np.testing.assert_array_equal(device_put(np.asarray(x), other.devices[0]), numbers(4))
    other.close()


# --- pytrees

Pair = collections.namedtuple("Pair", "left right")


def test_pytrees_go_leaf_by_leaf(platform):
    at, device = places(platform), platform.devices[1]
    tree = {"b": [numbers(8), 2.0], "a": Pair(None, numbers(8, 2)), "c": ()}
    moved = device_put(tree, on(at.full))
    assert moved["b"][0].sharding == moved["b"][1].sharding == on(at.full)
    assert (moved["a"].left, moved["c"], type(moved["a"])) == (None, (), Pair)
    mixed = device_put(tree, {"a": on(at.full, "x"), "b": [device, None], "c": None})
    assert mixed["a"].right.sharding == on(at.full, "x")
    assert mixed["b"][0].device is device
    assert not mixed["b"][1].committed
    assert device_put(None, device) is None
    assert [x.item() for x in device_put([1.0, 2.0])] == [1.0, 2.0]
    assert device_put((numbers(2), None), (device, None))[1] is None


def test_a_target_that_is_no_prefix_raises(platform):
    device = platform.devices[0]
    head = r"device_put device specification must be a tree prefix of the corresponding value; \n  Mismatch details"
    for value, target, text in [
        ((1.0, 2.0), (device,), "different lengths of tuple"),
        ((1.0, 2.0), [device, device], "different types"),
        ({"a": 1, "b": 2}, {"a": device}, "symmetric difference on key sets is\n    b"),
        ([(1.0,)], [(device, device)], "device_put device[0]"),
        (1.0, [], "different types"),
        (numbers(3), [device], "different types"),
    ]:
        with pytest.raises(errors.TreePrefixError, match=head) as caught:
            device_put(value, target)
        assert text in str(caught.value)


def test_all_leaves_are_checked_before_anything_moves(platform):
    at = places(platform)
    x = device_put(numbers(8), on(at.full, "x")).block_until_ready()
    bad = [(x, "text"), (x, numbers(7)), (x, np.ma.array([1.0]))]
    with platform.scheduler.log.record() as submissions:
        for tree in bad:
            with pytest.raises((TypeError, ValueError)):
                device_put(tree, on(at.b, "x"), donate=True)
        with pytest.raises(ValueError, match="only accepts"):
            device_put((x, x), (on(at.b, "x"), "cpu"), donate=True)
    assert not submissions
    assert not x.is_deleted()


# --- donation


@pytest.mark.parametrize("donate", [True, "strict"])
def test_donation_consumes_the_source_whatever_the_move(platform, donate):
    at = places(platform)
    for target in (on(at.full, "x"), on(at.auto, "x"), on(at.reverse, "x"), on(at.full), on(at.b, "x"), None,
                   platform.devices[5]):  # fmt: skip
        x = device_put(numbers(8), on(at.full, "x"))
        y = device_put(x, target, donate=donate)
        assert x.is_deleted()
        assert not y.is_deleted()
        np.testing.assert_array_equal(y, numbers(8))
        with pytest.raises(
            RuntimeError, match=r"Array has been deleted with shape=float32\[8@x\]\.\nIt was donated at"
        ):
            np.asarray(x)


def test_donation_frees_the_memory(platform):
    device = platform.devices[0]

    def in_use():
        platform.scheduler.park()
        for d in platform.devices:
            d.memory.wait_for_all_parked()
        return device.memory_stats()["bytes_in_use"]

    before = in_use()
    x = device_put(np.zeros(1000, "float32"), device)
    y = device_put(x, platform.devices[1], donate=True)
    y.block_until_ready()
    assert in_use() == before


def test_donation_leaves_values_from_the_host_alone(platform):
    values = numbers(8)
    x, y = device_put((values, 1.0), platform.devices[0], donate=True)
    np.testing.assert_array_equal(x, values)
    assert y.item() == 1.0


def test_an_array_that_is_donated_twice_in_one_call(platform):
    x = device_put(numbers(8), platform.devices[0])
    y, z = device_put((x, x), platform.devices[1], donate=True)
    assert x.is_deleted()
    np.testing.assert_array_equal(y, z)


def test_donation_of_part_of_a_tree(platform):
    x, y = device_put((numbers(2), numbers(3)), platform.devices[0])
    device_put((x, y), platform.devices[1], donate=(True, False))
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


def test_flags_of_donation(platform):
    x = device_put(numbers(8))
    with pytest.raises(ValueError, match=r"may_alias and donate cannot be True at the same time."):
        device_put(x, donate=True, may_alias=True)
    with pytest.raises(errors.DonateFlagError, match="'maybe'"):
        device_put(x, donate="maybe")
    with pytest.raises(errors.TreePrefixError, match="device_put donate specification"):
        device_put(x, donate=[True])
    with pytest.raises(TypeError):
        device_put(x, None, None, True)
    assert device_put(x, src=platform.devices[3]) is x


# --- deletion


def test_a_deleted_array_cannot_be_moved(platform):
    x = device_put(numbers(8), platform.devices[0])
    device_put(x, platform.devices[1])
    x.delete()
    for target in (None, platform.devices[0], platform.devices[1], on(places(platform).full)):
        for donate in (False, True, "strict"):
            with pytest.raises(errors.DeletedArrayError, match=r"(?s)deleted with shape=float32\[8\].*was deleted at"):
                device_put(x, target, donate=donate)
    with pytest.raises(errors.DeletedArrayError):
        device_get([x])


# --- the rest


def test_device_get_and_block_until_ready_pass_other_leaves_through(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    values = np.zeros(3)
    got = device_get({"x": x, "s": device_put(1.5), "t": "text", "n": None, "f": 2.0, "v": values})
    assert (got["t"], got["n"], got["f"]) == ("text", None, 2.0)
    assert got["v"] is values
    assert (type(got["s"]), got["s"].shape, got["x"].flags.writeable) == (np.ndarray, (), False)
    tree = [x, "text", None]
    assert block_until_ready(tree) is tree


def test_a_traced_value_is_staged(platform, monkeypatch):
    class Traced:
        _is_tracer = True

    staged = []
    monkeypatch.setattr(put, "staged_put", lambda *args: staged.append(args) or "staged")
    tracer, place = Traced(), on(places(platform).full, "x")
    assert device_put({"t": tracer, "x": numbers(8)}, place)["t"] == "staged"
    with set_mesh(places(platform).full):
        device_put(tracer, P("x"), donate=True)
    device_put(tracer)
    assert staged == [(tracer, place, False), (tracer, place, True), (tracer, None, False)]
    assert isinstance(tracer, Array)


def test_typeof_shows_explicit_axes(platform):
    at = places(platform)
    assert str(typeof(device_put(numbers(8), on(at.full, "x")))) == "float32[8@x]"
    assert str(typeof(device_put(numbers(8), on(at.auto, "x")))) == "float32[8]"
    assert repr(device_put(1.0).aval) == "ShapedArray(float32[], weak_type=True)"


def test_importing_the_array_floor_opens_no_platform():
    code = (
        "import cuplace.array.put, cuplace.runtime.platform as p, threading;"
        "assert p._current is None and threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
