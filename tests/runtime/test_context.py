"""The default device, the context mesh, and the key that both give to dispatch caches."""

from __future__ import annotations

from typing import Any

import pytest

from cuplace import errors
from cuplace.placement.mesh import EMPTY_MESH, AxisType, Mesh
from cuplace.runtime import context
from cuplace.runtime.config import config
from cuplace.runtime.context import (
    context_key,
    context_mesh,
    current_default_device,
    default_device,
    get_abstract_mesh,
    get_mesh,
    make_mesh,
    set_mesh,
)
from cuplace.runtime.platform import Platform, activated, open_platform
from tests.runtime.streams import in_threads

# ---------------------------------------------------------------------- default device


def test_the_default_is_the_first_device(platform: Platform) -> None:
    assert current_default_device() is platform.devices[0]


def test_blocks_nest_and_restore(platform: Platform) -> None:
    first, second, third = platform.devices[:3]
    with default_device(second):
        assert current_default_device() is second
        with default_device(third):
            assert current_default_device() is third
            with default_device(None):
                assert current_default_device() is first
        assert current_default_device() is second
    assert current_default_device() is first


def test_a_block_that_fails_restores(platform: Platform) -> None:
    with pytest.raises(ZeroDivisionError), default_device(platform.devices[3]):
        1 / 0
    assert current_default_device() is platform.devices[0]


def test_one_object_may_be_entered_again_and_again(platform: Platform) -> None:
    block = default_device(platform.devices[2])
    with block, block, block:
        assert current_default_device() is platform.devices[2]
    assert current_default_device() is platform.devices[0]
    with block:
        assert current_default_device() is platform.devices[2]
    assert current_default_device() is platform.devices[0]


def test_it_belongs_to_the_thread(platform: Platform) -> None:
    block = default_device(platform.devices[5])
    with block:
        seen = in_threads([current_default_device, lambda: _inside(block)])
        assert seen == [platform.devices[0], platform.devices[5]]
        assert current_default_device() is platform.devices[5]
    assert current_default_device() is platform.devices[0]


def _inside(block: Any) -> Any:
    with block:
        return current_default_device()


def test_a_platform_name_means_its_first_device(platform: Platform) -> None:
    with default_device(platform.devices[3]), default_device(platform.name):
        assert current_default_device() is platform.devices[0]
    absent = "sim" if platform.name == "cuda" else "gpu"
    with pytest.raises(RuntimeError, match=f"'{absent}' requested, but no platforms that are instances of {absent} "):
        default_device(absent)


@pytest.mark.parametrize("value", [3, "bogus", object(), [], 0])
def test_other_things_are_no_devices(platform: Platform, value: Any) -> None:
    with pytest.raises(errors.DefaultDeviceError) as caught:
        default_device(value)
    assert str(caught.value) == (
        "jax.default_device must be passed either a Device object (e.g. `jax.devices('cpu')[0]`) or a platform name "
        f"string like 'cpu' or 'gpu', got: {value!r}"
    )
    assert isinstance(caught.value, ValueError)


def test_the_option(platform: Platform) -> None:
    config.update("jax_default_device", platform.devices[4])
    assert current_default_device() is platform.devices[4]
    assert in_threads([current_default_device]) == [platform.devices[4]]
    with default_device(platform.devices[1]):
        assert current_default_device() is platform.devices[1]
    config.update("jax_default_device", platform.name)
    assert current_default_device() is platform.devices[0]
    config.update("jax_default_device", None)
    assert current_default_device() is platform.devices[0]


# ---------------------------------------------------------------------- context mesh


def test_set_mesh_holds_from_the_call_on(platform: Platform) -> None:
    mesh = make_mesh((8,), ("x",))
    assert get_mesh() is EMPTY_MESH
    assert context_mesh() is None
    set_mesh(mesh)
    assert get_mesh() is mesh
    assert context_mesh() is mesh
    assert get_abstract_mesh() is mesh.abstract_mesh
    set_mesh(None)
    assert get_mesh() is EMPTY_MESH
    assert get_mesh().empty


def test_set_mesh_as_a_block_nests_and_restores(platform: Platform) -> None:
    one, two = make_mesh((8,), ("x",)), make_mesh((2, 4), ("x", "y"))
    with set_mesh(one) as value:
        assert value is None
        with set_mesh(two):
            assert get_mesh() is two
            with set_mesh(None):
                assert context_mesh() is None
        assert get_mesh() is one
        with pytest.raises(ZeroDivisionError), set_mesh(two):
            1 / 0
        assert get_mesh() is one
    assert context_mesh() is None


def test_an_empty_mesh_is_none(platform: Platform) -> None:
    with set_mesh(make_mesh((8,), ("x",))), set_mesh(EMPTY_MESH):
        assert context_mesh() is None


def test_the_mesh_belongs_to_the_thread(platform: Platform) -> None:
    with set_mesh(make_mesh((8,), ("x",))):
        assert in_threads([context_mesh]) == [None]


@pytest.mark.parametrize("value", ["x", 3, object()])
def test_what_is_no_mesh(platform: Platform, value: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected mesh of type `jax.sharding.Mesh`. Got <class "):
        set_mesh(value)
    assert context_mesh() is None


def test_not_inside_jit(platform: Platform) -> None:
    mesh = make_mesh((8,), ("x",))
    context.tracing.depth += 1
    try:
        assert context.is_tracing()
        with pytest.raises(ValueError, match=r"`set_mesh` can only be used outside of `jax.jit`."):
            set_mesh(mesh)
        with pytest.raises(ValueError, match=r"`get_mesh` can only be used outside of `jax.jit`. Maybe you want"):
            get_mesh()
        get_abstract_mesh()
        assert in_threads([context.is_tracing]) == [False]
    finally:
        context.tracing.depth -= 1
    assert context_mesh() is None


def test_make_mesh_takes_the_first_devices(platform: Platform) -> None:
    mesh = make_mesh((2, 2), ("x", "y"))
    assert list(mesh.flat_devices) == list(platform.devices[:4])
    assert mesh.axis_types == (AxisType.Explicit, AxisType.Explicit)
    assert make_mesh((2, 2), ("x", "y")) is mesh
    back = make_mesh((8,), ("x",), devices=platform.devices[::-1])
    assert list(back.flat_devices) == list(platform.devices[::-1])
    with pytest.raises(ValueError, match="Number of devices 8 must be >= the product of mesh_shape"):
        make_mesh((9,), ("x",))


# ---------------------------------------------------------------------- the key


def test_the_key_is_one_object_as_long_as_nothing_changes(platform: Platform) -> None:
    key = context_key()
    assert context_key() is key
    assert (key.device, key.mesh, key.x64) == (platform.devices[0], EMPTY_MESH, False)
    assert in_threads([context_key] * 3) == [key] * 3


def test_the_key_changes_and_comes_back(platform: Platform) -> None:
    key = context_key()
    mesh = make_mesh((8,), ("x",))
    with default_device(platform.devices[1]):
        on_second = context_key()
        assert on_second is not key
        assert on_second.device is platform.devices[1]
        with set_mesh(mesh):
            assert context_key().mesh is mesh
            assert context_key() is not on_second
        assert context_key() is on_second
    assert context_key() is key
    with default_device(platform.devices[1]):
        assert context_key() is on_second
    with default_device(platform.devices[0]):
        assert context_key() is key
    set_mesh(mesh)
    assert context_key().mesh is mesh
    set_mesh(None)
    assert context_key() is key


def test_the_key_follows_options(platform: Platform) -> None:
    key = context_key()
    config.update("enable_x64", True)
    wide = context_key()
    assert wide is not key
    assert wide.x64 is True
    config.update("default_device", platform.devices[3])
    assert context_key().device is platform.devices[3]
    assert in_threads([context_key]) == [context_key()]
    config.update("default_device", None)
    assert context_key() is wide
    config.update("enable_x64", False)
    assert context_key() is key


def test_the_key_follows_the_platform(platform: Platform) -> None:
    key = context_key()
    other = open_platform("cpu", 2)
    try:
        with activated(other):
            assert context_key().device is other.devices[0]
        assert context_key() is key
    finally:
        other.close()


def test_options_of_other_threads_are_seen(platform: Platform) -> None:
    """A thread that has taken its key learns of a change that another thread makes."""
    key = context_key()
    in_threads([lambda: config.update("enable_x64", True)])
    assert context_key() is not key
    assert context_key().x64 is True


def test_meshes_of_the_key_are_meshes(platform: Platform) -> None:
    assert isinstance(context_key().mesh, Mesh)
