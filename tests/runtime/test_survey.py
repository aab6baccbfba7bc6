"""cuplace.topology: devices, links and what is known of them, at hand and elsewhere."""

from __future__ import annotations

import json

import pytest

import cuplace
from cuplace.errors import MachineError
from cuplace.runtime.faults import Faults
from cuplace.runtime.platform import Platform, activated, open_platform
from cuplace.runtime.survey import Pair, topology


def test_a_machine_is_shown_as_a_matrix_and_its_links() -> None:
    lines = str(topology("two-nodes")).splitlines()
    assert lines[0].split() == [*map(str, range(16)), "GPU", "node"]
    assert lines[9].split() == ["model:8", *["NET"] * 8, "X", *["P2P"] * 7, "8", "1"]
    assert lines[-2].split()[:6] == ["P2P", "112", "yes", "-", "396", "3"]
    assert lines[-1].split()[:6] == ["NET", "128", "no", "-", "50", "5"]
    assert repr(topology("two-nodes")) == "Survey(16 devices on 16 GPUs)"


def test_figures_are_told_in_dicts_too() -> None:
    told = json.loads(json.dumps(topology("pcie-8x").to_dict()))
    assert (told["machine"], len(told["devices"]), len(told["pairs"])) == ("pcie-8x", 8, 56)
    assert told["pairs"][0] == {
        "source": "model:0", "target": "model:1", "path": "staged", "p2p": False, "verified": None, "gb_s": 36.5,
        "latency_us": 25.0,
    }  # fmt: skip


@pytest.mark.sound_links
def test_the_platform_at_hand_is_shown_and_pairs_are_verified_by_use(platform: Platform) -> None:
    survey = cuplace.topology()
    assert list(survey.devices) == list(platform.devices)
    one, other = platform.devices[0], platform.devices[7]
    before = survey.pair(one, other)
    if platform.name != "sim":  # there, asking for the path of a pair tries it out
        assert before.verified is None
        assert (before.gb_s, before.latency_us) == (None, None)
    one.transfer_to(other)
    assert survey.pair(one, other) == before._replace(verified=True if before.p2p else None)
    if platform.name == "cuda" and not before.p2p:
        assert "tried" not in str(survey)
        return
    alike = [sum(device.gpu == end.gpu for device in platform.devices) for end in (one, other)]
    pairs = alike[0] * alike[1]  # what is known of a pair of GPUs holds for all their partitions
    tried = {"cpu": "verified", "sim": "56 of 56 tried", "cuda": f"{pairs} of {pairs} tried"}[platform.name]
    assert tried in str(survey)


def test_a_pair_that_loses_what_it_is_sent_is_not_trusted() -> None:
    platform = open_platform("sim", 4)
    platform.backend.set_faults(Faults(corrupt_pair=[(0, 1)]))  # type: ignore[attr-defined]
    with activated(platform):
        one, other = platform.devices[:2]
        one.transfer_to(other)
        assert one.transfer_to(other).path == "staged"
        assert topology().pair(one, other) == Pair("staged", False, False, 36.5, 25.0)
        assert "0 of 1 tried" in str(topology())


def test_one_device_has_no_links() -> None:
    alone = open_platform("sim", 1)
    with activated(alone):
        text = str(cuplace.topology())
    assert text.splitlines()[1].split() == ["sim:0", "X", "0", "0"]
    assert text.endswith("\n\nThere is one device, and so no way from one to another.")


def test_an_unknown_machine_is_told() -> None:
    with pytest.raises(MachineError, match="no machine 'abacus'"):
        topology("abacus")
