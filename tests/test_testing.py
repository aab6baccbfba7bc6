"""Faults on demand: what programs survive costs time only, what they do not is told rightly; then all is well again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cuplace
import cuplace.numpy as jnp
from cuplace import NamedSharding, P, testing
from cuplace.errors import FaultError, InjectedFaultError, NoFaultsError, OutOfMemoryError
from cuplace.runtime.backends.sim.links import Links
from cuplace.runtime.platform import Platform
from tests import fakegpus
from tests.order.random_program import RandomProgram

pytestmark = pytest.mark.sound_links  # the faults are its own

on_sim = pytest.mark.parametrize("platform", ["sim"], indirect=True)
where_links_are = pytest.mark.parametrize(
    "platform", ["sim"] if fakegpus.missing() else ["sim", "cuda"], indirect=True
)  # fmt: skip

VALUES = np.arange(64, dtype=np.float32).reshape(8, 8)
EVERY_PAIR = [(one, other) for one in range(8) for other in range(8) if one != other]


def move(platform: Platform, source: int = 0, target: int = 1) -> tuple[cuplace.Array, Any]:
    """An array that was moved between two devices, and the record of its move."""
    x = cuplace.device_put(VALUES, platform.devices[source])
    with platform.scheduler.log.record() as records:
        moved = cuplace.device_put(x, platform.devices[target])
    cuplace.block_until_ready(moved)
    return moved, records[-1]


# ---------------------------------------------------------------------- what programs survive


@where_links_are
@pytest.mark.parametrize("pairs", [True, (0, 1), [(1, 0), (2, 3)]], ids=str)
def test_without_peer_access_copies_go_through_the_host(platform: Platform, pairs: Any) -> None:
    direct = move(platform)[1]
    with testing.faults(no_p2p=pairs):
        moved, staged = move(platform)
        other = move(platform, 4, 5)[1]
    np.testing.assert_array_equal(np.asarray(moved), VALUES)
    assert (direct.path, staged.path) == ("peer", "staged")
    if platform.name == "sim":
        assert staged.end - staged.start > direct.end - direct.start
    assert other.path == ("staged" if pairs is True else "peer")
    assert move(platform)[1].path == "peer"


@where_links_are
def test_a_pair_that_corrupts_is_found_out_before_it_is_used(platform: Platform) -> None:
    devices = platform.devices
    with testing.faults(corrupt_pair=(devices[0], devices[1])):
        moved, record = move(platform)
        back = move(platform, 1, 0)[1]
    np.testing.assert_array_equal(np.asarray(moved), VALUES)
    assert (record.path, back.path) == ("staged", "peer")


@on_sim
def test_a_pair_that_is_trusted_blindly_delivers_zeros(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above relies on."""
    monkeypatch.setattr(Links, "_find_path", lambda self, source, target: "peer")
    with testing.faults(corrupt_pair=[(0, 1)]):
        moved, _ = move(platform)
    np.testing.assert_array_equal(np.asarray(moved), np.zeros_like(VALUES))


@on_sim
def test_a_slow_link_takes_its_time(platform: Platform) -> None:
    big = np.ones((1024, 1024), np.float32)

    def seconds(source: int, target: int) -> float:
        x = cuplace.device_put(big, platform.devices[source])
        with platform.scheduler.log.record() as records:
            cuplace.block_until_ready(cuplace.device_put(x, platform.devices[target]))
        return (records[-1].end - records[-1].start) * 1e-9 - 3e-6

    usual = seconds(0, 1)
    with testing.faults(slow_link={(0, 1): 10.0}):
        assert seconds(0, 1) == pytest.approx(10 * usual, rel=1e-3)
        assert seconds(1, 0) == pytest.approx(usual, rel=1e-3)
    assert seconds(0, 1) == pytest.approx(usual, rel=1e-3)


@where_links_are
@pytest.mark.parametrize(
    "options",
    [{"no_p2p": True}, {"corrupt_pair": EVERY_PAIR}, {"slow_link": dict.fromkeys(EVERY_PAIR[::3], 50.0)}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("seed", range(3))
def test_programs_survive(platform: Platform, options: dict[str, Any], seed: int) -> None:
    with testing.faults(**options):
        RandomProgram(platform, 7000 + seed, steps=20).run()


# ---------------------------------------------------------------------- what they are told


def test_work_fails_by_name_at_the_users_line(platform: Platform) -> None:
    @cuplace.jit
    def step(x: Any) -> Any:
        return jnp.sin(x) + 1

    with testing.faults(fail_op="step"):
        y = step(cuplace.device_put(VALUES, platform.devices[0]))
        moved = cuplace.device_put(y, platform.devices[1])
        for poisoned in (y, moved, moved * 2):
            with pytest.raises(InjectedFaultError, match=r"step' failed on demand") as caught:
                np.asarray(poisoned)
        assert any("step', enqueued at" in note and __file__ in note for note in caught.value.__notes__)
    found = np.asarray(step(cuplace.device_put(VALUES, platform.devices[0])))
    np.testing.assert_allclose(found, np.sin(VALUES) + 1, rtol=1e-5, atol=1e-6)


def test_only_the_named_time_fails(platform: Platform) -> None:
    x = cuplace.device_put(VALUES, platform.devices[0])
    with testing.faults(fail_op=("add", 2)):
        results = [x + i for i in range(3)]
    np.testing.assert_array_equal(np.asarray(results[0]), VALUES)
    with pytest.raises(InjectedFaultError):
        np.asarray(results[1])
    np.testing.assert_array_equal(np.asarray(results[2]), VALUES + 2)


def test_one_shard_that_fails_poisons_the_array(platform: Platform) -> None:
    mesh = cuplace.make_mesh((8,), ("x",), devices=platform.devices)
    x = cuplace.device_put(VALUES, NamedSharding(mesh, P("x")))
    with testing.faults(fail_op=("multiply", 5)):
        y = x * 3
    with pytest.raises(InjectedFaultError):
        y.block_until_ready()
    np.testing.assert_array_equal(np.asarray(x), VALUES)


@pytest.mark.parametrize("after", range(12))
def test_memory_runs_out_and_comes_back(platform: Platform, after: int) -> None:
    mesh = cuplace.make_mesh((4,), ("x",), devices=platform.devices[:4])

    def program() -> Any:
        x = cuplace.device_put(VALUES, NamedSharding(mesh, P("x")))
        return cuplace.device_put(x * 2, NamedSharding(mesh, P(None, "x")))

    with testing.faults(oom_after=after), pytest.raises(OutOfMemoryError, match=r"Out of memory on (cpu|gpu|sim):\d"):
        program()
    np.testing.assert_array_equal(np.asarray(program()), VALUES * 2)


def test_enough_memory_is_enough(platform: Platform) -> None:
    with testing.faults(oom_after=2):
        x = cuplace.device_put(VALUES, platform.devices[0]) + 1
    np.testing.assert_array_equal(np.asarray(x), VALUES + 1)


# ---------------------------------------------------------------------- the spelling


@where_links_are
def test_an_inner_block_takes_the_place_of_an_outer_one(platform: Platform) -> None:
    with testing.faults(no_p2p=True):
        with testing.faults(slow_link={(0, 1): 2}):
            assert move(platform)[1].path == "peer"
        assert move(platform)[1].path == "staged"
    assert move(platform)[1].path == "peer"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"no_p2p": [(0, 8)]}, r"no_p2p=...\) takes a pair of devices, or of ids from 0 to 7, got \(0, 8\)"),
        ({"no_p2p": [0]}, r"no_p2p=...\) takes a pair of devices or of their ids, got 0"),
        ({"corrupt_pair": ("a", "b")}, r"corrupt_pair=...\) takes a pair"),
        ({"slow_link": {(0, 1): 0.5}}, r"slow_link=...\) takes how many times slower a pair is, at least 1, got 0.5"),
        ({"slow_link": [(0, 1)]}, r"slow_link=...\) takes a dict from pairs"),
        ({"fail_op": ("add", 0)}, r"fail_op=...\) takes a name, or \(name, n\) with n from 1"),
        ({"oom_after": -1}, r"oom_after=...\) takes a number of allocations, from 0, got -1"),
    ],
    ids=str,
)
def test_faults_that_make_no_sense_are_refused(platform: Platform, options: dict[str, Any], text: str) -> None:
    with pytest.raises(FaultError, match=text), testing.faults(**options):
        pass


@pytest.mark.parametrize("platform", ["cpu"], indirect=True)
@pytest.mark.parametrize("options", [{"no_p2p": True}, {"corrupt_pair": (0, 1)}, {"slow_link": {(0, 1): 2}}], ids=str)
def test_cpu_devices_have_no_links(platform: Platform, options: dict[str, Any]) -> None:
    with pytest.raises(NoFaultsError, match="the platform cpu has none"), testing.faults(**options):
        pass
    with testing.faults():
        pass


@where_links_are
def test_copies_fail_by_name_too(platform: Platform) -> None:
    x = cuplace.device_put(VALUES, platform.devices[0])
    with testing.faults(fail_op="upload"), pytest.raises(InjectedFaultError):
        np.asarray(cuplace.device_put(VALUES, platform.devices[1]))
    with testing.faults(fail_op="move"), pytest.raises(InjectedFaultError):
        np.asarray(cuplace.device_put(x, platform.devices[1]))
    np.testing.assert_array_equal(np.asarray(cuplace.device_put(x, platform.devices[1])), VALUES)
