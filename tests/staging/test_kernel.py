"""Functions of the user's that are called at once: what GPUs refuse, memory that runs out, the page on kernels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cuplace import errors, map_shards
from cuplace.array.put import device_put
from tests import fakecuda, fakegpus
from tests.array.places import numbers, on, places

PAGE = Path(__file__).parent.parent.parent / "docs" / "kernels.md"

cuda = pytest.mark.parametrize("platform", [] if fakegpus.missing() else ["cuda"], indirect=True)


def add_one(x):
    x += 1
    return x


@cuda
def test_the_page_on_kernels_prints_what_it_shows(platform, capsys):
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join(text for kind, text in blocks[:4] if kind == "python")
    exec(compile(code, "kernels.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == "".join(text for kind, text in blocks[:4] if kind == "text")


@cuda
def test_results_that_the_device_cannot_use(platform):
    import cupy

    x = device_put(numbers(4), platform.devices[1])

    def elsewhere(x):
        with cupy.cuda.Device(0):
            return cupy.zeros(4, "float32")

    with pytest.raises(errors.KernelResultError, match="on GPU 0 for the shard on gpu:1, which is on GPU 1"):
        map_shards(elsewhere, x)
    with pytest.raises(errors.KernelResultError, match=r"returned numpy\.ndarray float32"):
        map_shards(lambda x: numbers(4), x)


@cuda
def test_out_of_memory_inside_a_function(platform):
    """Dead memory is waited for and the function called again; what does not fit then is told with a table."""
    import cupy

    x = device_put(numbers(8), on(places(platform).full, "x"))
    map_shards(lambda x: x + cupy.zeros(1, "float32")[0], x).block_until_ready()
    fakecuda.faults.fail_device_allocation(count=3)
    calls = []
    y = map_shards(lambda x: calls.append(1) or x + cupy.zeros(1 << 12, "float32")[0], x)
    np.testing.assert_array_equal(y, numbers(8))
    fakecuda.faults.memory_limit(8 << 20)
    with pytest.raises(errors.OutOfMemoryError, match="temporary memory of"):
        map_shards(lambda x: x + cupy.zeros(1 << 24, "float32")[0], x)
    fakecuda.faults.clear()
    np.testing.assert_array_equal(map_shards(add_one, x, donate_argnums=0), numbers(8) + 1)
    assert len(calls) == 9
