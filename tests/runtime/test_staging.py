"""Staging: how much memory a packed copy takes, and the chunks that pass through it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuplace.runtime.pieces import pieces
from cuplace.runtime.staging import CHUNK_BYTES, IN_FLIGHT, UNIT, chunking, most_staging, packed_ends
from cuplace.runtime.strided import ROW_BYTES

SIZES = st.integers(1, 20_000)
ROOMS = st.lists(st.integers(1, 12).map(lambda units: units * UNIT), min_size=1, max_size=2)


@given(SIZES, ROOMS)
def test_chunks_in_flight_fit_the_memory_at_both_ends(nbytes: int, rooms: list[int]) -> None:
    size, count = chunking(nbytes, *rooms)
    assert 0 < size * count <= min(rooms)
    assert count == 1 or size % UNIT == 0
    parts = [np.zeros(nbytes, np.uint8)[part].nbytes for part in pieces((nbytes,), 1, size)]
    assert sum(parts) == nbytes
    assert max(parts) <= size


@given(SIZES)
def test_with_all_that_is_of_use_a_copy_is_one_chunk(nbytes: int) -> None:
    assert chunking(nbytes, most_staging(nbytes)) == (nbytes, 1)


def test_large_copies_overlap_their_chunks() -> None:
    nbytes = 10 * CHUNK_BYTES
    assert most_staging(nbytes) == IN_FLIGHT * CHUNK_BYTES
    assert chunking(nbytes, most_staging(nbytes)) == (CHUNK_BYTES, IN_FLIGHT)
    assert chunking(nbytes, 5 * UNIT, 1 << 30) == (2 * UNIT, 2)


@pytest.mark.parametrize(
    ("shape", "source", "target", "ends"),
    [
        ((8,), (4,), (4,), (False, False)),
        ((8, 4), (64, 4), (16, 4), (True, False)),
        ((8, 4), (16, 4), (64, 4), (False, True)),
        ((8, 4), (64, 4), (128, 4), (True, True)),
        ((8, ROW_BYTES // 4), (1 << 20, 4), (1 << 21, 4), (False, False)),
        ((8, ROW_BYTES // 4 - 1), (1 << 20, 4), (1 << 21, 4), (True, True)),
        ((2, 2, ROW_BYTES // 4), (1 << 22, 1 << 20, 4), (1 << 21, 1 << 12, 4), (True, True)),
        ((0, 4), (64, 4), (16, 4), (False, False)),
        ((), (), (), (False, False)),
    ],
)
def test_what_engines_do_badly_is_packed_where_it_is_not_contiguous(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], ends: tuple[bool, bool]
) -> None:
    assert packed_ends(shape, 4, source, target) == ends
