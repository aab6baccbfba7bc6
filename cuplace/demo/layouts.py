"""Arrays and layouts as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from cuplace.array.dtypes import checked_dtype
from cuplace.errors import LayoutTextError
from cuplace.placement.axes import AxisType
from cuplace.placement.mesh import Mesh
from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import PartitionSpec

_ARRAY = re.compile(r"(\w+)\[([\d,\s]*)\]")
_AXIS = re.compile(r"(\w+)=([1-9]\d*)")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def read_array(text: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype.

    Raises:
        LayoutTextError: a ValueError, where the text is written in another way, or there is no such dtype.

    >>> read_array("float32[4,8]")
    ((4, 8), dtype('float32'))
    """
    found = _ARRAY.fullmatch(text.strip())
    if found is None:
        raise LayoutTextError("array", text, "float32[4096,8192]")
    shape = tuple(int(size) for size in found[2].split(",") if size.strip())
    try:
        return shape, checked_dtype(np.dtype(getattr(ml_dtypes, found[1], found[1])))
    except TypeError:
        raise LayoutTextError("dtype", found[1], "float32") from None


def read_layout(text: str, devices: Sequence[Any]) -> NamedSharding:
    """A sharding over some of the devices: ``MESH/SPEC/DEVICES``, as ``x=2,y=2/x,-/4-7``.

    SPEC names an axis, several joined by ``+``, or ``-`` for each dimension, and may be empty. DEVICES are numbers
    and ranges, the first ones where they are left out; a range may run backwards.

    Raises:
        LayoutTextError: a ValueError, where the text is written in another way, or names devices that are not there.
        and what `Mesh` and `NamedSharding` raise.

    >>> from cuplace.runtime.survey import topology
    >>> read_layout("x=4/-,x/7-4", topology("hgx-h200").devices).flat_ids
    (7, 6, 5, 4)
    """
    mesh_text, _, rest = text.partition("/")
    spec_text, _, devices_text = rest.partition("/")
    axes = [_AXIS.fullmatch(axis.strip()) for axis in mesh_text.split(",")]
    if not all(axes):
        raise LayoutTextError("layout", text, "x=4/x,-/0-3")
    names, sizes = zip(*[(axis[1], int(axis[2])) for axis in axes if axis], strict=True)
    count = int(np.prod(sizes))
    chosen = _read_devices(devices_text, devices) if devices_text else list(devices[:count])
    if len(chosen) != count:
        raise LayoutTextError("layout", text, f"{count} of the {len(devices)} devices, for a mesh of {mesh_text}")
    array = np.empty(count, dtype=object)
    array[:] = chosen
    entries = [
        None if entry.strip() in ("-", "") else tuple(entry.strip().split("+")) for entry in spec_text.split(",")
    ]
    spec = PartitionSpec(*entries) if spec_text.strip() else PartitionSpec()
    return NamedSharding(Mesh(array.reshape(sizes), names, (AxisType.Explicit,) * len(names)), spec)


def _read_devices(text: str, devices: Sequence[Any]) -> list[Any]:
    numbers: list[int] = []
    for part in text.split(","):
        found = _SPAN.fullmatch(part.strip())
        if found is None:
            raise LayoutTextError("devices", text, "0-3 or 0,2,4")
        first, last = int(found[1]), int(found[2] or found[1])
        if max(first, last) >= len(devices):
            raise LayoutTextError("devices", text, f"numbers up to {len(devices) - 1}")
        numbers += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return [devices[number] for number in numbers]
