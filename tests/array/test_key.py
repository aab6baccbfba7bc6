from __future__ import annotations

import numpy as np
import pytest

from cuplace.array.key import key_of, operand_key, type_under
from cuplace.errors import RankError
from cuplace.placement.sharding import NamedSharding, SingleDeviceSharding
from cuplace.placement.spec import P
from tests.transfer.shardings import DEVICES, mesh

F32 = np.dtype("float32")


def test_equal_keys_are_one_object():
    sharding = NamedSharding(mesh(DEVICES[:2], (2,), ("x",)), P("x"))
    key = key_of((2, 4), F32, False, sharding, True)
    assert key is key_of((2, 4), F32, False, sharding, True)
    assert key is operand_key(type_under((2, 4), F32, False, sharding), sharding, True)
    assert key is not key_of((2, 4), F32, False, sharding, False)
    assert key is not key_of((2, 4), F32, True, sharding, True)
    assert repr(key).startswith("OperandKey(float32[2@x,4], NamedSharding(")


def test_the_type_follows_from_the_sharding():
    grid = mesh(DEVICES[:2], (2,), ("x",))
    assert type_under((2, 4), F32, False, NamedSharding(grid, P("x"))).spec == P("x", None)
    single = type_under((2, 4), F32, False, SingleDeviceSharding(DEVICES[0]))
    assert (single.spec, single.mesh) == (P(None, None), None)
    with pytest.raises(RankError):
        type_under((2,), F32, False, NamedSharding(grid, P("x", None)))
