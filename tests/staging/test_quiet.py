from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

from cuplace.staging.quiet import quieted, quietly

ZERO = np.zeros(1, np.float32)
LOG = quieted(np.log, "reads[0], writes[0]")


def log_of_zero(work):
    out = np.empty_like(ZERO)
    work([ZERO], [out], ())
    return out[0]


def test_numpys_warnings_are_hidden_and_the_users_setting_is_left():
    before = np.geterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert log_of_zero(LOG) == -np.inf
        with pytest.raises(RuntimeWarning):
            np.log(ZERO)
    assert np.geterr() == before


def test_operands_are_those_that_are_named():
    out = np.empty(1)
    quieted(np.subtract, "numbers[1], reads[0], writes[1]")([np.float64(2)], [None, out], (None, 5.0))
    assert out == 3


def test_calls_may_be_nested_and_come_from_any_thread():
    found = []

    def inner():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(log_of_zero(quieted(LOG)))

    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    inner()
    assert found == [-np.inf, -np.inf]


def test_an_error_inside_passes_through():
    def fail(reads, writes, numbers):
        raise RuntimeError("no")

    for _ in range(2):
        for call in (quieted(fail), lambda *args: quietly(fail, *args)):
            with pytest.raises(RuntimeError, match="no"):
                call([], [], ())
            with pytest.warns(RuntimeWarning, match="divide by zero"):
                np.log(ZERO)


def test_what_is_called_quietly_gives_its_result_and_may_be_nested():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quietly(np.log, ZERO) == -np.inf
        assert quietly(quietly, np.log, ZERO) == -np.inf
        assert quietly(log_of_zero, LOG) == -np.inf
