from __future__ import annotations

import enum

import ml_dtypes
import numpy as np
import pytest

from cuplace import errors
from cuplace.array.host import read_host_value
from cuplace.runtime.config import config


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (3, "int32", True),
        (Level.HIGH, "int32", True),
        (0.5, "float32", True),
        (2j, "complex64", True),
        (True, "bool", False),
        (np.float64(0.5), "float32", False),
        (np.bool_(True), "bool", False),
        (ml_dtypes.bfloat16(1), "bfloat16", False),
        (np.zeros((2, 0), "uint64"), "uint32", False),
    ],
)
@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
def test_python_numbers_are_weak_and_nothing_is_wider_than_32_bits(value, dtype, weak):
    found, weak_type = read_host_value(value)
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape, weak_type) == (np.dtype(dtype), np.shape(value), weak)
    np.testing.assert_array_equal(found, np.asarray(value).astype(found.dtype))


def test_64_bits_are_kept_where_they_are_on(platform):
    config.update("enable_x64", True)
    assert read_host_value(2**40)[0].dtype == np.int64
    values = np.arange(3.0)
    assert read_host_value(values)[0] is values


def test_an_array_that_is_right_is_not_copied():
    for values in (np.zeros(3, "float32"), np.zeros((2, 2), "int8")[:, ::-1], np.empty(0, "complex64")):
        assert read_host_value(values)[0] is values


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("1.0", errors.NotAnArrayError),
        (None, errors.InvalidValueError),
        ([1, 2], errors.InvalidValueError),
        (np.array(["a"]), errors.DtypeError),
        (np.zeros(1, "O"), errors.DtypeError),
        (np.zeros(1, ">i4"), errors.DtypeError),
        (np.zeros(1, [("a", "f4")]), errors.DtypeError),
        (np.timedelta64(1), errors.DtypeError),
        (np.ma.masked_array([1.0]), errors.MaskedArrayError),
        (2**31, errors.IntegerRangeError),
        (np.array([-(2**31) - 1]), errors.IntegerRangeError),
        (np.uint64(2**32), errors.IntegerRangeError),
    ],
)
def test_what_is_no_array_has_an_error_of_its_own(value, error):
    with pytest.raises(error):
        read_host_value(value)
