"""The control functions of the fake CUDA library, with their types."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_long,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path


class Param(ctypes.Structure):
    """``shim::Param`` of ``shim/launch.h``: one parameter of a kernel."""

    _fields_ = [("size", c_int32), ("kind", c_char), ("itemsize", c_int32), ("ndim", c_int32)]


class PlainRegion(ctypes.Structure):
    """``PlainRegion`` of ``src/kernels.h``."""

    _fields_ = [
        ("address", c_uint64), ("itemsize", c_uint64), ("write", c_int32), ("ndim", c_int32),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
    ]  # fmt: skip


class LaunchInfo(ctypes.Structure):
    """``LaunchInfo`` of ``src/kernels.h``."""

    _fields_ = [
        ("kernel", c_char_p), ("args", POINTER(c_void_p)), ("sizes", POINTER(c_int32)),
        ("arg_count", c_int32), ("grid", c_uint32 * 3), ("block", c_uint32 * 3),
        ("shared", c_uint32),
    ]  # fmt: skip


class PlainCopy(ctypes.Structure):
    """``CopyRecord`` of ``src/records.h``."""

    _fields_ = [
        ("number", c_int64), ("direction", c_int32), ("pageable", c_int32),
        ("target", c_uint64), ("source", c_uint64),
        ("target_device", c_int32), ("source_device", c_int32), ("nbytes", c_int64),
        ("width", c_int64), ("rows", c_int64), ("slices", c_int64),
        ("target_pitch", c_int64), ("source_pitch", c_int64),
        ("stream", c_uint64), ("stream_device", c_int32), ("host_thread", c_int32),
    ]  # fmt: skip


Describe = CFUNCTYPE(None, POINTER(LaunchInfo))
HostCall = CFUNCTYPE(None, c_long)

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "fake_set_mode": (None, [c_int, c_uint]),
    "fake_set_visible": (None, [c_int]),
    "fake_set_gate_timeout": (None, [c_double]),
    "fake_reset": (None, []),
    "fake_start_time": (None, [c_double, c_double, c_double, c_double]),
    "fake_stop_time": (None, []),
    "fake_now_ns": (c_double, []),
    "fake_pass_ns": (None, [c_double]),
    "fake_set_ticks": (None, [c_int, c_double]),
    "fake_take_reports": (c_char_p, []),
    "fake_counters": (c_char_p, []),
    "fake_reset_counters": (None, []),
    "fake_copies": (c_long, [POINTER(PlainCopy), c_long]),
    "fake_host_access": (None, [c_uint64, c_size_t, c_int]),
    "fake_declare": (None, [POINTER(PlainRegion), c_int]),
    "fake_set_describer": (None, [c_char_p, Describe]),
    "fake_add_piece": (None, [c_uint64, c_size_t]),
    "fake_free_piece": (None, [c_uint64]),
    "fake_forget_pieces": (None, []),
    "fake_name_stream": (None, [c_uint64, c_char_p]),
    "fake_release": (None, [c_uint64, c_int]),
    "fake_thread_born": (None, [c_uint64]),
    "fake_acquire": (None, [c_uint64, c_int]),
    "fake_host_call": (c_int, [c_uint64, c_char_p, HostCall, c_long, POINTER(PlainRegion), c_int]),
    "fake_regions_meet": (c_int, [POINTER(PlainRegion), POINTER(PlainRegion)]),
    "fake_region_covers": (c_int, [POINTER(PlainRegion), POINTER(PlainRegion)]),
    "fake_report": (None, [c_char_p, c_char_p]),
    "fake_set_folders": (None, [POINTER(c_char_p), c_int, POINTER(c_char_p), c_int]),
    "fake_take_places": (None, [c_int]),
    "fake_find_sanitizer": (c_int, []),
    "fake_set_loading_module": (None, [c_int64]),
    "fake_register_kernel": (None, [c_int64, c_char_p, c_void_p, c_int, POINTER(Param), c_char_p]),
    "fake_register_failure": (None, [c_int64, c_char_p, c_char_p]),
    "fake_fault_no_peer": (None, [c_int, c_int, c_int]),
    "fake_fault_corrupt": (None, [c_int, c_int, c_int]),
    "fake_fault_memory_limit": (None, [c_int, c_size_t]),
    "fake_fault_allocation": (None, [c_int, c_long, c_long]),
    "fake_fault_launch": (None, [c_char_p, c_int, c_long, c_long, c_int, c_int]),
    "fake_fault_lose": (None, [c_int, c_int]),
    "fake_fault_clear": (None, []),
}

_loaded: list[ctypes.CDLL] = []


def load(path: Path) -> None:
    """Load the library so that CuPy's modules, which look for ``libcuda.so.1``, find it loaded already."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    _loaded.append(library)


def loaded() -> bool:
    """Whether the fake is installed in this process."""
    return bool(_loaded)


def library() -> ctypes.CDLL:
    """The library.

    Raises:
        RuntimeError: the fake is not installed.
    """
    if not _loaded:
        raise RuntimeError("the fake CUDA is not installed here: call fakecuda.install() before CuPy is imported")
    return _loaded[0]
