"""Every name that `cuplace` owes is there; a name that is not says why."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cuplace

TOP = {
    "devices", "local_devices", "device_count", "local_device_count", "process_index", "process_count",
    "default_backend", "Mesh", "make_mesh", "set_mesh", "P", "NamedSharding", "Array", "Device", "config",
    "device_put", "device_get", "reshard", "jit", "typeof", "block_until_ready", "default_device", "sharding",
    "numpy", "lax", "errors", "tree", "make_array_from_callback", "make_array_from_single_device_arrays",
    "make_array_from_process_local_data", "check_order", "testing", "map_shards", "ShapeDtypeStruct",
    "transfer_guard", "transfer_guard_host_to_device", "transfer_guard_device_to_host",
    "transfer_guard_device_to_device", "transfer_guard_host_sync", "transfer_guard_host_bounce", "prefetch",
    "iter_host", "memory_report", "free_unused", "live_arrays", "profile", "memory", "plan", "topology",
}  # fmt: skip
SHARDING = {
    "Mesh", "AbstractMesh", "AxisType", "Sharding", "NamedSharding", "SingleDeviceSharding", "PartitionSpec",
    "get_mesh", "get_abstract_mesh",
}  # fmt: skip
NUMPY = {
    "array", "asarray", "from_dlpack", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "zeros_like",
    "ones_like", "full_like", "empty_like", "add", "subtract", "multiply", "divide",
    "floor_divide", "remainder", "power", "negative", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "logical_and", "logical_or", "logical_not",
    "sin", "cos", "tan", "exp", "log", "sqrt",
    "tanh", "abs", "maximum", "minimum", "where", "sum", "mean", "max", "min", "matmul", "reshape", "transpose",
    "concatenate", "stack", "float32", "int32", "bfloat16", "bool_", "pi", "inf", "nan", "newaxis",
}  # fmt: skip
PLANNED = {
    "shard_map", "eval_shape", "clear_caches", "random", "debug", "distributed",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TOP))
def test_every_public_name_is_there_and_listed(name: str) -> None:
    assert getattr(cuplace, name) is not None
    assert name in cuplace.__all__
    assert name in dir(cuplace)


@pytest.mark.parametrize("name", sorted(SHARDING))
def test_every_name_of_sharding_is_there(name: str) -> None:
    assert getattr(cuplace.sharding, name) is not None


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_every_name_of_numpy_is_there(name: str) -> None:
    assert hasattr(cuplace.numpy, name)


def test_scan_is_there() -> None:
    assert callable(cuplace.lax.scan)


def test_all_lists_exactly_the_public_names() -> None:
    assert set(cuplace.__all__) == TOP | {"__version__"}


def test_names_stand_for_one_thing() -> None:
    assert cuplace.P is cuplace.sharding.PartitionSpec
    assert cuplace.Mesh is cuplace.sharding.Mesh
    assert cuplace.NamedSharding is cuplace.sharding.NamedSharding


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_planned_name_says_that_it_is_planned(name: str) -> None:
    with pytest.raises(AttributeError, match=f"cuplace.{name} is planned, but not there yet"):
        getattr(cuplace, name)


@pytest.mark.parametrize("name", ["grad", "vmap", "pmap", "value_and_grad", "vjp", "checkpoint"])
def test_a_transformation_of_jax_says_that_there_are_none(name: str) -> None:
    with pytest.raises(AttributeError, match=f"cuplace has no '{name}': .* does not transform programs"):
        getattr(cuplace, name)


def test_a_removed_name_of_jax_says_what_to_write_instead() -> None:
    with pytest.raises(AttributeError, match=r"use device_put\(x, sharding\)"):
        _ = cuplace.device_put_sharded


def test_a_name_of_jax_lax_says_what_to_write_instead() -> None:
    for name, instead in {"fori_loop": "scan", "cond": "where", "psum": "reshard", "dot": "cuplace.numpy"}.items():
        with pytest.raises(AttributeError, match=f"cuplace.lax has no '{name}': .*{instead}"):
            getattr(cuplace.lax, name)


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cuplace' has no attribute 'device_putt'") as caught:
        _ = cuplace.device_putt
    assert caught.value.name == "device_putt"
    assert not hasattr(cuplace, "__wrapped__")


def test_importing_loads_nothing_and_starts_nothing() -> None:
    program = (
        "import os; os.environ['CUPLACE_PLATFORM'] = 'no such platform'\n"
        "import sys, threading, cuplace\n"
        "assert not {'numba', 'cupy', 'optree', 'ml_dtypes', 'numpy'} & set(sys.modules)\n"
        "import cuplace.numpy, cuplace.lax, cuplace._public\n"
        "assert not {'numba', 'cupy', 'jax'} & set(sys.modules)\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
