from __future__ import annotations

import re

import pytest

from cuplace import errors
from cuplace.array import deletion
from cuplace.array.put import device_put
from tests.array.places import numbers
from tests.runtime.streams import in_threads


def told(array):
    with pytest.raises(errors.DeletedArrayError) as caught:
        array.devices()
    return str(caught.value).splitlines()


def test_the_error_tells_how_by_which_line_and_what_to_do(platform):
    x, y = device_put(numbers(3), platform.devices[0]), device_put(numbers(2), platform.devices[0])
    x.delete()
    device_put(y, platform.devices[1], donate=True)
    first, second, third = told(x)
    assert first == "Array has been deleted with shape=float32[3]."
    assert re.fullmatch(r"It was deleted at .*test_deletion\.py:\d+ \(test_the_error_tells_.*\)\.", second)
    assert third.startswith("Keep the array")
    first, second, third = told(y)
    assert first == "Array has been deleted with shape=float32[2]."
    assert second.startswith("It was donated at ")
    assert third.startswith("Use what the call that consumed it returned")


def test_the_latest_endings_are_remembered_and_no_more(platform, monkeypatch):
    monkeypatch.setattr(deletion, "REMEMBERED", 3)
    monkeypatch.setattr(deletion, "_endings", type(deletion._endings)())
    arrays = [device_put(numbers(1)) for _ in range(5)]
    for x in arrays:
        x.delete()
    assert len(deletion._endings) == 3
    assert [len(told(x)) for x in arrays] == [2, 2, 3, 3, 3]


def test_an_ending_is_never_taken_for_that_of_another_array(platform, monkeypatch):
    monkeypatch.setattr(deletion, "REMEMBERED", 2)
    for _ in range(20):  # memory of Python's is reused at once
        x = device_put(numbers(1))
        assert id(x._buffers) not in deletion._endings
        x.delete()


def test_deleting_twice_keeps_the_first_line(platform):
    x = device_put(numbers(1))
    x.delete()
    before = told(x)
    x.delete()
    assert told(x) == before


def test_many_threads_end_arrays_at_once(platform, monkeypatch):
    monkeypatch.setattr(deletion, "REMEMBERED", 4)

    def work():
        for _ in range(200):
            device_put(numbers(1)).delete()

    in_threads([work] * 4)
    assert len(deletion._endings) <= 4 + 4
