"""Every error class names one mistake, is what JAX raises, and is used."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

import cuplace
from cuplace import errors

ROOT = Path(cuplace.__file__).parent
CLASSES = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}


@pytest.fixture(scope="module")
def sources() -> str:
    return "\n".join(path.read_text() for path in ROOT.rglob("*.py") if path.name != "errors.py")


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_is_a_builtin_error_with_a_sentence_about_it(name: str) -> None:
    found = CLASSES[name]
    assert issubclass(found, Exception)
    assert any(base.__module__ == "builtins" and base is not Exception for base in found.__mro__[1:])
    assert not any(base in (KeyError, OSError) for base in found.__mro__), "their text is printed in another way"
    assert (found.__doc__ or "").strip().endswith(".")


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_is_raised_somewhere(name: str, sources: str) -> None:
    used = len(re.findall(rf"\b{name}\(", sources)) + len(re.findall(rf"errors\.{name}\b", sources))
    assert used, f"nothing raises {name}"


def test_the_error_of_meshes_prints_as_jax_prints_it() -> None:
    error = errors.IncompatibleDevicesError("text")
    assert type(error).__name__ == type(error).__qualname__ == "ValueError"
    assert repr(error) == "ValueError('text')"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (ValueError, "text")


def test_the_line_of_asynchronous_work_is_a_note() -> None:
    error = errors.with_user_line(ZeroDivisionError("text"), "divide", "file.py:3 (f)")
    assert error.__notes__ == ["raised by 'divide', enqueued at file.py:3 (f)"]
    assert str(error) == "text"
    assert not hasattr(errors.with_user_line(ZeroDivisionError("text"), "divide", None), "__notes__")


def test_a_table_of_the_largest_buffers_is_in_the_text_of_exhausted_memory() -> None:
    error = errors.OutOfMemoryError("cpu:0", 4096, "float32[1024]", 10**4, 10**4 + 1, [(9000, "int8[9000]")])
    assert str(error).splitlines() == [
        "Out of memory on cpu:0: float32[1024] needs 4,096 bytes; 10,000 of 10,001 (max_device_bytes) are in use.",
        "The largest live arrays there, in bytes:",
        "             9,000  int8[9000]",
        "Delete or donate arrays that are no longer needed, or spread them over more devices.",
    ]
    assert isinstance(error, MemoryError)
    assert "max_device_bytes" not in str(errors.OutOfMemoryError("cpu:0", 1, "int8[1]", 0, None, []))
