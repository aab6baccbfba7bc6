"""The cuda backend itself: what it says of the GPUs that it runs on."""

from __future__ import annotations

import re
from typing import Any

from cuplace.runtime.platform import Platform


def test_the_hardware_is_told_in_a_line_for_each_gpu(cuda: Platform) -> None:
    backend: Any = cuda.backend
    lines = backend.hardware()
    assert len(lines) == 8
    assert all(re.fullmatch(rf"{re.escape(gpu.name)}, sm_\d+, \d+\.\d GiB", line)
               for gpu, line in zip(backend.gpus, lines, strict=True))  # fmt: skip
