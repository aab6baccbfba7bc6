from __future__ import annotations

import enum

import ml_dtypes
import numpy as np
import pytest

from cuplace import errors
from cuplace.array.put import device_put
from cuplace.runtime.config import config
from cuplace.staging.operand import HostKey, ScalarKey, literal, operand_key, quick_key, scalar_converter


class Number(enum.IntEnum):
    TWO = 2


def test_keys_of_arrays_are_their_own(platform):
    x = device_put(np.float32([1, 2]))
    assert operand_key(x) is x._key
    assert quick_key(x) is x._key


def test_keys_of_host_arrays_and_numbers_are_interned():
    assert operand_key(np.zeros(3, np.float32)) is operand_key(np.ones(3, np.float32))
    assert type(operand_key(np.zeros(3, np.float32))) is HostKey
    assert operand_key(1.0) is operand_key(2.0)
    assert type(operand_key(1)) is ScalarKey
    assert operand_key(1) is not operand_key(True)


def test_types_of_numbers():
    assert (operand_key(1.5).type.dtype, operand_key(1.5).type.weak_type) == (np.float32, True)
    assert (operand_key(np.float64(1.5)).type.dtype, operand_key(np.float64(1)).type.weak_type) == (np.float32, False)
    assert operand_key(Number.TWO).type is operand_key(2).type


def test_keys_follow_enable_x64(platform):
    config.update("enable_x64", True)
    assert operand_key(1).type.dtype == np.int64


@pytest.mark.parametrize("value", ["text", object(), b"bytes", range(3), np.array(["a"]), np.array([object()])])
def test_what_is_no_array_is_refused(value):
    with pytest.raises(TypeError):
        operand_key(value)


def test_masked_arrays_are_refused():
    with pytest.raises(errors.MaskedArrayError):
        operand_key(np.ma.array([1, 2], mask=[0, 1]))


def test_quick_keys_are_as_fine_as_keys():
    class Sub(np.ndarray):
        pass

    a, b = np.zeros(2, np.float32).view(Sub), np.zeros(3, np.float32).view(Sub)
    assert quick_key(a) != quick_key(b)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "float32"), (3, "float32"), (3, "int8"), (300, "int8"), (2.5, "float16"), (2.7, "int32"),
        (1 + 2j, "complex64"), (np.int64(7), "int32"), (np.float64(1.1), "float32"), (np.bool_(True), "int32"),
        (3, "uint8"), (-1, "uint8"),
    ],
)  # fmt: skip
def test_numbers_are_converted_as_programs_convert_them(value, dtype):
    dtype = np.dtype(dtype)
    found = scalar_converter(type(value), dtype)(value)
    assert found.dtype == dtype
    assert found == np.asarray(value).astype(dtype)


def test_numbers_become_small_floats():
    found = scalar_converter(float, np.dtype(ml_dtypes.bfloat16))(1.5)
    assert (found.dtype, float(found)) == (ml_dtypes.bfloat16, 1.5)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, np.int64(2**40)])
@pytest.mark.parametrize("dtype", ["int32", "float32", "int8"])
def test_integers_that_32_bits_do_not_hold_are_refused(value, dtype):
    with pytest.raises(OverflowError, match="too large to convert to int32"):
        scalar_converter(type(value), np.dtype(dtype))(value)


def test_literals():
    assert literal(2).value.dtype == np.int32
    found = literal(2, np.dtype("float32"), False)
    assert (found.value, found.type.weak_type) == (np.float32(2), False)
    with pytest.raises(OverflowError):
        literal(2**40)
