from __future__ import annotations

import numpy as np
import pytest

from cuplace.demo.layouts import read_array, read_layout
from cuplace.errors import LayoutTextError
from cuplace.placement.spec import P
from cuplace.runtime.survey import topology

DEVICES = topology("two-nodes").devices


def test_arrays_are_read() -> None:
    assert read_array("int8[]") == ((), np.dtype("int8"))
    assert read_array(" bfloat16[3, 4] ")[0] == (3, 4)
    assert read_array("bfloat16[3]")[1].name == "bfloat16"


@pytest.mark.parametrize("text", ["float32", "[3]", "float32[3", "float32[-1]", "float33[3]", "object[3]", "str[3]"])
def test_what_is_no_array_is_told(text: str) -> None:
    with pytest.raises(LayoutTextError, match="cannot be read; expected"):
        read_array(text)


def test_layouts_are_read() -> None:
    layout = read_layout("x=2,y=2/-,x+y/15-12", DEVICES)
    assert (layout.mesh.axis_sizes, layout.mesh.axis_names) == ((2, 2), ("x", "y"))
    assert layout.spec == P(None, ("x", "y"))
    assert layout.flat_ids == (15, 14, 13, 12)
    assert read_layout("x=4", DEVICES).flat_ids == (0, 1, 2, 3)
    assert read_layout("x=3/x/0,4-5", DEVICES).flat_ids == (0, 4, 5)


@pytest.mark.parametrize("text", ["", "x", "x=0/x", "x=2/x/0", "x=2/x/0-16", "x=2/x/a", "x=17/x"])
def test_what_is_no_layout_is_told(text: str) -> None:
    with pytest.raises(LayoutTextError, match="cannot be read; expected"):
        read_layout(text, DEVICES)
