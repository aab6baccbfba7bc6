from __future__ import annotations

import numpy as np

from cuplace.placement.mesh import make_mesh
from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from cuplace.staging.local import Slot
from cuplace.staging.value import INPUT_LEVEL, Value
from tests.placement.pretend import DEVICES

F32 = np.dtype("float32")
MESH = make_mesh((2, 4), ("x", "y"), devices=DEVICES[:8])


def test_local_shape_and_full_rank_spec():
    value = Value((8, 8), F32, False, NamedSharding(MESH, P("y")), 0, INPUT_LEVEL)
    assert (value.local_shape, value.spec) == ((2, 8), P("y", None))


def test_a_single_device_holds_everything():
    value = Value((8, 8), F32, False, SingleDeviceSharding(DEVICES[0]), 0, INPUT_LEVEL)
    assert (value.local_shape, value.spec) == ((8, 8), P(None, None))


def test_a_number_has_no_shape():
    assert Value((), F32, True, NamedSharding(MESH, P()), -1, INPUT_LEVEL, Slot(0)).local_shape == ()


def test_relabelling_keeps_the_data():
    value = Value((8,), F32, False, NamedSharding(MESH, P("x")), 3, 1)
    other = value.relabelled(NamedSharding(MESH, P("y")))
    assert (other.place, other.level, other.local_shape) == (3, 1, (2,))
