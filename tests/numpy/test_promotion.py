"""The dtypes of results, for all functions and pairs of operands, against tables made with JAX 0.10.2."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import cuplace.numpy as jnp
from cuplace.runtime.platform import Platform

TABLE = json.loads(Path(__file__).with_name("numbers.json").read_text())
ONE, TWO = TABLE["unary operands"].split(), TABLE["binary operands"].split()
NUMBERS = {"py_bool": True, "py_int": 1, "py_float": 0.5, "py_complex": 0.5j}

WEAKNESS_ASIDE = {"logical_and", "logical_or", "logical_xor"}
"""Functions of bools, whose results JAX calls weak or not by how it converts Python numbers to bools."""

ALLOWED_HERE = {
    ("round", "bool"), ("round", "py_bool"), ("argmax", "complex64"), ("argmax", "py_complex"),
    ("argmin", "complex64"), ("argmin", "py_complex"),
}  # fmt: skip
"""What JAX refuses, by accident of how it computes, and NumPy allows."""

only_cpu = pytest.mark.parametrize("platform", ["cpu"], indirect=True)


def operand(name: str) -> Any:
    return NUMBERS[name] if name in NUMBERS else jnp.ones((2,), getattr(jnp, name))


def outcome(function: Any, *operands: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*operands)
        except (TypeError, ValueError):
            return "!"
    return f"{result.dtype}{'~' if result.weak_type else ''}"


def same(name: str, got: str, expected: str) -> bool:
    return got == expected or (name in WEAKNESS_ASIDE and got.rstrip("~") == expected.rstrip("~"))


@only_cpu
@pytest.mark.parametrize("name", TABLE["unary"])
def test_functions_of_one_operand(name: str, platform: Platform) -> None:
    got = {of: outcome(getattr(jnp, name), operand(of)) for of in ONE if (name, of) not in ALLOWED_HERE}
    expected = dict(zip(ONE, TABLE["unary"][name].split(), strict=True))
    assert {of: (g, expected[of]) for of, g in got.items() if not same(name, g, expected[of])} == {}


@only_cpu
@pytest.mark.parametrize("name", TABLE["binary"])
def test_functions_of_two_operands(name: str, platform: Platform) -> None:
    function = (lambda x, y: jnp.where(True, x, y)) if name == "where" else getattr(jnp, name)
    wrong = {}
    for a, row in zip(TWO, TABLE["binary"][name], strict=True):
        for b, expected in zip(TWO, row.split(), strict=True):
            got = outcome(function, operand(a), operand(b))
            if not same(name, got, expected):
                wrong[a, b] = (got, expected)
    if name == "dot":  # a product of a small integer and a Python int, which JAX refuses by accident
        wrong = {pair: texts for pair, texts in wrong.items() if texts[1] != "!"}
    if name == "arctan2":  # JAX extends it to complex numbers, NumPy does not
        wrong = {pair: texts for pair, texts in wrong.items() if texts[0] != "!"}
    assert wrong == {}
