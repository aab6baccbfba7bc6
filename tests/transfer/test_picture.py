from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np

from cuplace.placement.sharding import NamedSharding
from cuplace.placement.spec import P
from cuplace.runtime.presets import PRESETS
from cuplace.runtime.topology import find_topology
from cuplace.transfer.plan import plan_move
from tests.transfer.shardings import mesh

F32 = np.dtype("float32")
GPUS = find_topology(PRESETS["hgx-h200"]).devices


def on(devices, *spec):
    return NamedSharding(mesh(devices, (len(devices),), ("x",)), P(*spec))


COLUMNS = plan_move((4, 1024), F32, on(GPUS[:4], "x"), on(GPUS[:4], None, "x"))
CHAIN = plan_move((1 << 14, 1 << 12), F32, on(GPUS[:1]), on(GPUS))


def test_a_summary_tells_paths_time_memory_and_the_busiest_port():
    lines = str(COLUMNS).splitlines()
    assert lines[1] == "  12 KiB peer, 4 KiB local; rounds: 1; 162 us on hgx-h200; new memory a device: at most 4 KiB"
    assert lines[2] == "  busiest: GPU 0 out, 3 KiB"
    assert len(lines) == 3 + 16
    assert ", after move " in str(CHAIN)
    assert "more" in str(CHAIN).splitlines()[-2]
    assert str(CHAIN).splitlines()[-1] == "  model:0  aliased"


def test_the_matrix_has_bytes_of_each_pair():
    rows = [line.split() for line in COLUMNS.matrix().splitlines()]
    assert rows[0] == ["from", "\\", "to", "model:0", "model:1", "model:2", "model:3"]
    assert rows[1] == ["model:0", *["1", "KiB"] * 4]
    rows = CHAIN.matrix().splitlines()
    assert rows[1].split() == ["model:0", "=", "256", "MiB", *["."] * 6]
    assert len(rows) == 1 + 7  # the last one of the chain sends nothing


def test_the_picture_is_a_square_for_each_pair():
    root = ET.fromstring(COLUMNS.svg())
    squares = [child for child in root if child.tag.endswith("rect")]
    assert len(squares) == 16
    assert [square[0].text for square in squares[:2]] == [
        "model:0 -> model:0: 1024 bytes", "model:0 -> model:1: 1024 bytes"
    ]  # fmt: skip
    assert COLUMNS._repr_svg_() == COLUMNS.svg()


def test_numbers_survive_json():
    for plan in (COLUMNS, CHAIN):
        told = json.loads(json.dumps(plan.to_dict()))
        assert told["bytes"] == plan.nbytes == sum(move["bytes"] for move in told["moves"])
        assert (told["rounds"], told["seconds"], told["machine"]) == (plan.rounds, plan.seconds, "hgx-h200")
        assert [move["after"] for move in told["moves"]] == [move.after for move in plan.moves]
        assert told["bytes_through"]["GPU 0 out"] == sum(
            move["bytes"] for move in told["moves"] if move["source"] == "model:0" and move["path"] == "peer"
        )


def test_rounds_are_the_hops_of_the_longest_chain():
    assert (COLUMNS.rounds, CHAIN.rounds) == (1, 7)
