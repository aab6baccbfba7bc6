from __future__ import annotations

import numpy as np
import pytest

from cuplace import errors
from cuplace.array import reshard as module
from cuplace.array.put import device_put
from cuplace.array.reshard import reshard
from cuplace.placement.sharding import SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.runtime.context import set_mesh
from tests.array.places import numbers, on, places


def test_another_layout_on_the_same_devices(platform):
    at = places(platform)
    x = device_put(numbers(8, 8), on(at.full, "x"))
    for target, spec in [(on(at.full, None, "x"), P(None, "x")), (on(at.full), P(None, None)),
                         (on(at.grid, ("x", "y")), P(("x", "y"), None))]:  # fmt: skip
        y = reshard(x, target)
        assert (y.sharding, y.committed) == (on(target.mesh, *spec), True)
        np.testing.assert_array_equal(y, numbers(8, 8))
    same = reshard(x, on(at.full, "x"))
    assert same is not x
    assert same.sharding == on(at.full, "x", None)


def test_what_is_uncommitted_is_placed(platform):
    at = places(platform)
    for value in (numbers(8), device_put(numbers(8))):
        assert reshard(value, on(at.b, "x")).sharding == on(at.b, "x")
    tree = reshard({"a": 1.0, "b": (numbers(8), None)}, {"a": on(at.full), "b": on(at.full, "x")})
    assert tree["b"][0].sharding == on(at.full, "x")
    assert tree["b"][1] is None
    with set_mesh(at.full):
        assert reshard(numbers(8), P("x")).sharding == on(at.full, "x")


def test_other_devices_raise(platform):
    at = places(platform)
    name = platform.devices[0].platform.upper()
    x = device_put(numbers(8), on(at.full, "x"))
    with pytest.raises(errors.IncompatibleDevicesError) as caught:
        reshard(x, on(at.b, "x"))
    assert str(caught.value).splitlines()[0] == (
        "Received incompatible devices for jitted computation. Got argument args[0] of reshard with shape "
        f"float32[8@x] and with device ids [0, 1, 2, 3, 4, 5, 6, 7] on platform {name} and jit's context mesh with "
        f"device ids [4, 5, 6, 7] on platform {name}"
    )
    assert "The array was committed at" in str(caught.value)
    with pytest.raises(errors.IncompatibleDevicesError, match="Only the order of the devices differs"):
        reshard(x, on(at.reverse, "x"))
    with pytest.raises(errors.IncompatibleDevicesError):
        reshard(device_put(numbers(8), platform.devices[0]), on(at.full, "x"))


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (lambda at: None, ValueError, "Reshard should only be used with out_shardings which are non-None"),
        (lambda at: at.m0.flat_devices[0], TypeError, "`out_sharding` argument of reshard only supports instances"),
        (lambda at: SingleDeviceSharding(at.m0.flat_devices[0]), TypeError, "`out_sharding` argument of reshard"),
        (lambda at: P("x"), ValueError, "Using PartitionSpec when you are not under a mesh context is not allowed"),
        (lambda at: on(at.auto, "x"), ValueError, "cannot contain axis names that are of type Auto or Manual"),
        (lambda at: [on(at.full), on(at.full)], ValueError, "must be a tree prefix"),
        (lambda at: on(at.full, "x", None), ValueError, "Length of sharding.spec"),
        (lambda at: on(at.grid, "y"), ValueError, "Sharding spec ('y',) implies that array axis 0 is partitioned 4"),
    ],
)
def test_bad_targets_raise(platform, target, error, text):
    for value in (numbers(6), device_put(numbers(6))):
        with pytest.raises(error) as caught:
            reshard(value, target(places(platform)))
        assert text in str(caught.value)


def test_a_mesh_of_auto_axes_takes_a_spec_without_them(platform):
    at = places(platform)
    assert reshard(numbers(8), on(at.auto)).sharding == on(at.auto, None)


def test_a_deleted_array_raises(platform):
    x = device_put(numbers(8), on(places(platform).full, "x"))
    x.delete()
    with pytest.raises(errors.DeletedArrayError):
        reshard(x, on(places(platform).full))


def test_a_traced_value_is_staged(platform, monkeypatch):
    class Traced:
        _is_tracer = True

    monkeypatch.setattr(module, "staged_reshard", lambda *args: args)
    tracer, target = Traced(), on(places(platform).full, "x")
    assert reshard([tracer], target) == [(tracer, target)]
