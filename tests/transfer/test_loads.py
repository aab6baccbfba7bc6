from __future__ import annotations

from dataclasses import replace

import pytest

from cuplace.runtime.machine import Machine
from cuplace.runtime.topology import Port, find_topology
from cuplace.transfer.loads import Copy, busiest, bytes_through, estimate
from tests.transfer.machines import NODE, NODES

ONE = find_topology(NODE)
KILOBYTE = 1000  # a second on a link of these machines


def test_bytes_are_counted_at_both_ends():
    through = bytes_through([Copy(0, 1, 3), Copy(0, 2, 4), Copy(1, 1, 5)], ONE)
    assert through == {
        Port("out", 0): 7, Port("into", 1): 3, Port("into", 2): 4, Port("memory", 1): 10,
    }  # fmt: skip


def test_the_busiest_port_bounds_the_time():
    assert busiest([Copy(0, 1, KILOBYTE), Copy(2, 1, KILOBYTE), Copy(3, 4, KILOBYTE)], ONE) == pytest.approx(2.0)
    assert busiest([Copy(0, 5, KILOBYTE)], find_topology(NODES)) == pytest.approx(10.0)
    assert busiest([], ONE) == 0.0


def test_copies_wait_for_their_ends_and_for_what_feeds_them():
    chain = [Copy(0, 1, KILOBYTE), Copy(1, 2, KILOBYTE, 0), Copy(0, 3, KILOBYTE)]
    assert estimate(chain, ONE) == pytest.approx(2.0)
    assert estimate([*chain, Copy(3, 2, KILOBYTE, 2)], ONE) == pytest.approx(3.0)


def test_enqueueing_and_setting_out_take_time():
    slow: Machine = replace(NODE, submit_us=1e6, peer=replace(NODE.peer, latency_us=5e5))
    copies = [Copy(0, 1, 10), Copy(2, 3, 10)]
    assert estimate(copies, find_topology(slow)) == pytest.approx(2.0 + 0.01 + 0.5)
