"""Transfer guards: levels, blocks, options, the environment, threads, and what is logged."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import errors
from cuplace.runtime.config import GUARD_LEVELS, GUARDS, Config, config
from cuplace.runtime.context import context_key
from cuplace.runtime.guard import armed
from cuplace.runtime.levels import Levels

BLOCKS = [getattr(cuplace, name) for name in ("transfer_guard", *GUARDS)]
VALUES = np.float32([1, 2])


def may(call) -> bool:
    try:
        call()
    except errors.TransferGuardError:
        return False
    return True


def upload() -> bool:
    """Whether a value may follow an array to its device unasked."""
    x = cuplace.device_put(VALUES)
    return may(lambda: x + VALUES)


def in_another_thread(call):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


ALLOWED = [  # level, whether implicit and explicit transfers are allowed
    ("allow", True, True),
    ("log", True, True),
    ("log_explicit", True, True),
    ("disallow", False, True),
    ("disallow_explicit", False, False),
]


def test_what_levels_allow(platform):
    for case in ALLOWED:
        check_what_a_level_allows(*case)


def check_what_a_level_allows(level, implicit, explicit):
    x = cuplace.device_put(VALUES)
    with cuplace.transfer_guard(level):
        assert may(lambda: x + VALUES) is implicit
        assert may(lambda: cuplace.device_put(VALUES)) is explicit
        assert may(lambda: np.asarray(x)) is implicit
        assert may(lambda: cuplace.device_get(x)) is explicit
        assert may(lambda: x + x)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("level", ["bogus", 3, True])
def test_a_level_that_there_is_not(restored_config, block, level):
    with pytest.raises(ValueError, match=r"^new enum value must be None or in \['allow', 'log', 'dis") as caught:
        block(level)
    assert f"got {level} of type {type(level)}." in str(caught.value)
    with pytest.raises(errors.GuardLevelError):
        config.update(block.__name__, level)
    assert getattr(config, block.__name__) is None


def test_blocks_nest_and_restore_also_when_they_fail(platform):
    with cuplace.transfer_guard("disallow"):
        assert not upload()
        with cuplace.transfer_guard_host_to_device("allow"):
            assert upload()
            with cuplace.transfer_guard(None):  # None: what the options say
                assert upload()
        with pytest.raises(ZeroDivisionError), cuplace.transfer_guard("allow"):
            1 / 0
        assert not upload()
    assert upload()


def test_one_block_may_be_entered_again_and_again(platform):
    block = cuplace.transfer_guard_host_to_device("disallow")
    with block, block:
        assert not upload()
    assert upload()
    with block:
        assert not upload()


def test_directions_are_set_one_by_one(platform):
    x = cuplace.device_put(VALUES)
    with cuplace.transfer_guard_device_to_host("disallow"):
        assert upload()
        assert not may(lambda: float(x[0]))
    with cuplace.transfer_guard_host_to_device("disallow_explicit"):
        assert not may(lambda: cuplace.device_put(VALUES))
        assert may(lambda: repr(x))


def test_options_hold_in_all_threads_and_blocks_in_their_own(platform):
    with cuplace.transfer_guard("disallow"):
        assert in_another_thread(upload)
    config.update("jax_transfer_guard", "disallow")
    assert (config.transfer_guard_device_to_host, config.jax_transfer_guard_host_to_device) == ("disallow", "disallow")
    assert not in_another_thread(upload)
    with cuplace.transfer_guard(None):
        assert not upload()
    with cuplace.transfer_guard("allow"):
        assert upload()
    config.update("transfer_guard_host_to_device", "allow")
    assert upload()
    assert not may(lambda: repr(cuplace.device_put(VALUES)))
    config.update("transfer_guard", None)
    assert (config.transfer_guard_host_to_device, may(lambda: repr(cuplace.device_put(VALUES)))) == (None, True)


def test_the_options_of_waits_and_bounces_are_not_set_by_that_of_transfers(platform):
    config.update("transfer_guard", "disallow_explicit")
    assert (config.transfer_guard_host_sync, config.transfer_guard_host_bounce) == (None, None)
    x = jnp.arange(2)
    assert may(x.block_until_ready)
    config.update("transfer_guard_host_sync", "disallow_explicit")
    assert not may(x.block_until_ready)


def test_the_environment_is_read_at_first_use():
    program = (
        "import cuplace, os, numpy as np\n"
        "os.environ['CUPLACE_TRANSFER_GUARD'] = 'disallow'\n"
        "os.environ['CUPLACE_TRANSFER_GUARD_DEVICE_TO_HOST'] = 'allow'\n"
        "x = cuplace.numpy.arange(2)\n"
        "print(x)\n"
        "x + np.float32(1)\n"
    )
    environment = {**os.environ, "CUPLACE_PLATFORM": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "[0 1]\n"
    assert "TransferGuardError: INVALID_ARGUMENT: Disallowed host-to-device transfer" in done.stderr


def test_a_bad_level_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("CUPLACE_TRANSFER_GUARD", "forbid")
    with pytest.raises(errors.GuardLevelError, match=r"got forbid of type <class 'str'>.\nIt comes from CUPLACE_TRANS"):
        _ = Config().transfer_guard


def test_nothing_is_armed_where_everything_is_allowed(platform):
    assert upload()
    with cuplace.transfer_guard("log_explicit"):
        upload()
    cuplace.device_get(cuplace.device_put(VALUES, platform.devices[1]))
    config.update("transfer_guard", "allow")
    with cuplace.transfer_guard("allow"):
        upload()
    assert not armed
    assert context_key().levels is None
    assert context_key() is context_key().unguarded


@pytest.mark.parametrize("level", ["log", "log_explicit"])
def test_logging_names_the_transfer_and_the_line(platform, caplog, level):
    x = cuplace.device_put(VALUES)
    with caplog.at_level(logging.WARNING, "cuplace.transfer_guard"), cuplace.transfer_guard(level):
        for _ in range(2):
            x + VALUES
        cuplace.device_put(VALUES)
    implicit = [record.getMessage() for record in caplog.records]
    assert len(implicit) == (2 if level == "log" else 3)
    assert implicit[0].startswith("host-to-device transfer: aval=ShapedArray(float32[2]), dst_sharding=SingleDeviceSha")
    assert "test_guard.py:" in implicit[0]


def test_an_error_says_what_where_to_which_guard_and_what_to_write(platform):
    x = cuplace.device_put(VALUES)
    with cuplace.transfer_guard("disallow"), pytest.raises(RuntimeError) as caught:
        x + VALUES
    first, second = str(caught.value).splitlines()
    assert first == (
        "INVALID_ARGUMENT: Disallowed host-to-device transfer: aval=ShapedArray(float32[2]), dst_sharding="
        f"{x.sharding}"
    )
    assert second.startswith("transfer_guard_host_to_device is 'disallow'. Write device_put(value, sharding)")


def test_levels_over_others():
    assert Levels("log").over(Levels("allow", "disallow")) == Levels("log", "disallow")
    assert Levels("allow", None).all_allowed
    assert not any(Levels("disallow", "log").refuses("device_to_device", explicit) for explicit in (False, True))
    assert [Levels(level).logs("host_to_device", True) for level in GUARD_LEVELS] == [0, 0, 0, 1, 0]
