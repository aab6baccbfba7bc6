"""``CONVERT``: values in another dtype, or of another weakness."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuplace.array import dtypes
from cuplace.array.type import ArrayType
from cuplace.ops.elementwise import elementwise_rule
from cuplace.ops.op import Op, OutType, Params


def _infer(types: tuple[ArrayType, ...], params: Params) -> OutType:
    return OutType(types[0].shape, params["dtype"], params["weak_type"])


def _convert(xp: Any, x: Any, *, dtype: np.dtype, weak_type: bool) -> Any:
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if _through_float(x.dtype, dtype):
        x = x.astype(np.float32)
    return x.astype(dtype)


def _through_float(source: np.dtype, target: np.dtype) -> bool:
    """Whether there is no direct cast: between the floats of ml_dtypes, and from them to complex numbers."""
    extended = dtypes.EXTENSION_FLOATS
    return (source in extended and (target in extended or target.kind == "c")) or (
        target in extended and source.kind == "c"
    )


CONVERT = Op(name="convert_element_type", infer=_infer, rule=elementwise_rule(), compute=_convert, elementwise=True)
"""Params: ``dtype`` (a NumPy dtype), ``weak_type`` (bool). The same values where only the weakness changes."""
