"""Targets that cannot be: each is refused before a byte moves, alone and in a tree, and leaves the source as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cuplace
from cuplace import NamedSharding, P, errors
from cuplace.runtime.platform import Platform
from tests.transfer.log import transfer_log

VALUES = np.arange(24, dtype=np.float32).reshape(8, 3)

Call = Callable[..., Any]


def _tree(call: Call) -> Call:
    """The call with the array as the last leaf of a tree whose other leaves could be moved."""
    return lambda x, target, **options: call({"good": [np.ones((8, 8), np.float32)], "x": x}, target, **options)


CALLS: dict[str, Call] = {
    "device_put": cuplace.device_put,
    "device_put, donated": lambda x, target, **options: cuplace.device_put(x, target, donate=True, **options),
    "device_put of a tree": _tree(cuplace.device_put),
    "reshard": cuplace.reshard,
    "reshard of a tree": _tree(cuplace.reshard),
    "plan": cuplace.plan,
}

REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = {
    "uneven": ((None, "x"), {}, errors.IndivisibleError),
    "wrong rank": ((None, None, "x"), {}, errors.RankError),
    "too little memory": ((), {"max_bytes": VALUES.nbytes - 1}, errors.MaxBytesError),
    "no number of bytes": ((), {"max_bytes": -1}, errors.MaxBytesError),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("name", CALLS)
def test_a_target_that_cannot_be_is_refused_before_a_byte_moves(platform: Platform, name: str, why: str) -> None:
    spec, options, error = REFUSED[why]
    mesh = cuplace.make_mesh((8,), ("x",))
    x = cuplace.block_until_ready(cuplace.device_put(VALUES, NamedSharding(mesh, P("x"))))
    in_use = [device.memory.in_use for device in platform.devices]
    with transfer_log(platform) as log, platform.scheduler.log.record() as records, pytest.raises(error):
        CALLS[name](x, NamedSharding(mesh, P(*spec)), **options)
    assert (log.calls, list(records)) == ([], [])
    assert [device.memory.in_use for device in platform.devices] == in_use
    assert not x.is_deleted()
    assert x.sharding == NamedSharding(mesh, P("x"))
    np.testing.assert_array_equal(np.asarray(x), VALUES)


@pytest.mark.parametrize("how", ["deleted", "donated"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "plan"])
def test_a_source_that_is_gone_is_refused_before_a_byte_moves(platform: Platform, name: str, how: str) -> None:
    mesh = cuplace.make_mesh((8,), ("x",))
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    x = cuplace.device_put(VALUES, rows)
    y = cuplace.block_until_ready(cuplace.device_put(x, whole, donate=True) if how == "donated" else x + 1)
    x.delete()
    with platform.scheduler.log.record() as records, pytest.raises(errors.DeletedArrayError, match=how):
        CALLS[name](x, whole)
    assert list(records) == []
    np.testing.assert_array_equal(np.asarray(y), VALUES + (how == "deleted"))


def test_at_says_what_to_write_instead(platform: Platform) -> None:
    for use in (lambda x: x.at[0].set(1), cuplace.jit(lambda x: x.at[0].set(1))):
        with pytest.raises(errors.NoAtError, match=r"^There is no \.at.*cuplace\.numpy\.where"):
            use(cuplace.device_put(VALUES))
    assert not hasattr(cuplace.device_put(VALUES), "at")


def test_several_devices_are_no_target_but_a_sharding_on_them_is(platform: Platform) -> None:
    with pytest.raises(errors.TreePrefixError, match="Several devices are one target as a sharding"):
        cuplace.device_put(VALUES, list(platform.devices[:2]))
