from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.topology import find_topology
from cuplace.transfer.routes import Routes
from tests.transfer.machines import NODES

TOPOLOGY = find_topology(NODES)
GPUS = st.sets(st.integers(0, 11), min_size=1)
PIECES = st.lists(st.tuples(GPUS, GPUS).filter(lambda ends: ends[1] - ends[0]), min_size=1, max_size=6)


def routes_of(ends) -> Routes:
    return Routes([(tuple(sorted(held)), tuple(sorted(need - held))) for held, need in ends], TOPOLOGY)


@given(PIECES, st.integers(0, 20))
def test_every_chunk_reaches_all_that_need_it_once_and_each_node_once(ends, turn):
    routes = routes_of(ends)
    for piece, (held, need) in enumerate(ends):
        have = set(held)
        crossings: Counter[int] = Counter()
        for source, target in routes.find(piece, turn):
            assert source in have
            assert target not in have
            have.add(target)
            if TOPOLOGY.node(source) != TOPOLOGY.node(target):
                crossings[TOPOLOGY.node(target)] += 1
        assert have == held | need
        lacking = {TOPOLOGY.node(gpu) for gpu in need} - {TOPOLOGY.node(gpu) for gpu in held}
        assert crossings == dict.fromkeys(lacking, 1)


@given(st.integers(0, 3), st.integers(0, 20))
def test_inside_of_a_node_nobody_feeds_two_and_nobody_is_fed_by_two(first, turn):
    hops = routes_of([({first}, {0, 1, 2, 3})]).find(0, turn)
    assert len({hop.source for hop in hops}) == len({hop.target for hop in hops}) == 3


def test_network_cards_carry_alike():
    routes = routes_of([({gpu}, set(range(8))) for gpu in range(4)])
    cards = Counter(
        pair for piece in range(4) for turn in range(4) for pair in routes.find(piece, turn)
        if TOPOLOGY.node(pair[0]) != TOPOLOGY.node(pair[1])
    )  # fmt: skip
    assert sorted(cards.values()) == [4, 4, 4, 4]
    assert len({source for source, _ in cards}) == len({target for _, target in cards}) == 4


def test_where_one_gpu_holds_all_its_mates_send_for_it():
    routes = routes_of([({0}, set(range(8)))])
    crossings = [hop for turn in range(8) for hop in routes.find(0, turn) if hop.source < 4 <= hop.target]
    assert Counter(hop.source for hop in crossings) == dict.fromkeys(range(4), 2)
