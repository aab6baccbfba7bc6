"""The page "Data placement" of JAX's documentation, snippet by snippet, on cuplace.

The snippets are the page's own; only the imports differ. They run in the page's order in one namespace, on
each platform, and every line that the page prints is asserted. What the page, made on CPU, calls CpuDevice and
CPU is named after the platform at hand.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cuplace.runtime.platform import Platform


class Snippet(NamedTuple):
    """Code, and what it prints: output, the value of a last expression, and the first line of an error."""

    code: str
    prints: str = ""


PAGE = {
    "imports": Snippet(
        """\
import cuplace as jax

jax.config.update('jax_num_cpu_devices', 8)

import cuplace.numpy as jnp
import numpy as np
from cuplace.sharding import NamedSharding
"""
    ),
    "a mesh over all devices": Snippet(
        """\
full = jax.make_mesh((8,), ('x',))
full
""",
        "Mesh(axis_sizes=(8,), axis_names=('x',), axis_types=(Explicit,))",
    ),
    "smaller meshes": Snippet(
        """\
mesh_a = jax.make_mesh((4,), ('x',), devices=full.devices[:4])
mesh_b = jax.make_mesh((4,), ('x',), devices=full.devices[4:])

m0 = jax.make_mesh((1,), ('x',), devices=full.devices[:1])
m1 = jax.make_mesh((1,), ('x',), devices=full.devices[1:2])
"""
    ),
    "default placement": Snippet(
        """\
x = jnp.arange(4.0)
print(x.committed)
print(x.sharding)
""",
        """\
False
SingleDeviceSharding(device={Device}(id=0), memory_kind=device)
""",
    ),
    "deliberate placement": Snippet(
        """\
data = np.arange(8.0)
xa = jax.device_put(data, NamedSharding(mesh_a, jax.P('x')))
print(xa.committed)
print(xa.sharding.mesh == mesh_a)
""",
        """\
True
True
""",
    ),
    "two commitments": Snippet(
        """\
a = jax.device_put(1.0, NamedSharding(m0, jax.P()))
b = jax.device_put(2.0, NamedSharding(m1, jax.P()))

a + b  # committed to different meshes!
""",
        "ValueError: Received incompatible devices for jitted computation. Got argument x of add with shape "
        "float32[] and with device ids [0] on platform {PLATFORM} and argument y of add with shape float32[] "
        "and with device ids [1] on platform {PLATFORM}",
    ),
    "uncommitted values follow": Snippet(
        """\
c = jnp.float32(3.0)   # uncommitted
print((a + c).sharding)  # runs on m0, where `a` is committed
""",
        "NamedSharding(mesh=Mesh('x': 1, axis_types=(Explicit,)), spec=P(), memory_kind=device)",
    ),
    "a move to another mesh": Snippet(
        """\
xb = jax.device_put(xa, NamedSharding(mesh_b, jax.P('x')))
print(xb.sharding.mesh == mesh_b)
""",
        "True",
    ),
    "the same devices in another order": Snippet(
        """\
mesh_rev = jax.make_mesh((8,), ('x',), devices=full.devices[::-1])

x = jax.device_put(np.arange(8.0), NamedSharding(full, jax.P('x')))
y = jax.device_put(x, NamedSharding(mesh_rev, jax.P('x')))  # same devices, new order

def data_by_device(arr):
  return [float(s.data[0]) for s in sorted(arr.addressable_shards,
                                           key=lambda s: s.device.id)]

print(data_by_device(x))  # what each of devices 0, 1, ..., 7 holds
print(data_by_device(y))
""",
        """\
[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
""",
    ),
    "no move to another mesh inside jit": Snippet(
        """\
@jax.jit
def f(x):
  return jax.device_put(x, NamedSharding(mesh_b, jax.P('x')))

f(xa)  # error: can't move to a different mesh inside jit!
""",
        "ValueError: Received incompatible devices for jitted computation. Got argument x of f with shape "
        "float32[8@x] and with device ids [0, 1, 2, 3] on platform {PLATFORM} and device_put inside jit with "
        "device ids [4, 5, 6, 7] on platform {PLATFORM} at {FILE}:3:9 (f)",
    ),
    "the pipeline": Snippet(
        """\
stage_meshes = [jax.make_mesh((2,), ('x',), devices=full.devices[2*i:2*i+2])
                for i in range(4)]

@jax.jit
def stage(x):
  return jnp.sin(x) + 1.0   # stand-in for real per-stage computation

microbatches = [np.full((256, 256), float(i)) for i in range(8)]

results = []
for mb in microbatches:
  for m in stage_meshes:
    mb = jax.device_put(mb, NamedSharding(m, jax.P('x')))
    mb = stage(mb)
  results.append(mb)

print(results[-1].sharding.mesh == stage_meshes[-1])
""",
        "True",
    ),
}


class Reader:
    """Runs snippets one after another, as a notebook does, and tells what each prints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def path(self, title: str) -> Path:
        return self.folder / f"{title.replace(' ', '_')}.py"

    def run(self, title: str) -> str:
        path = self.path(title)
        path.write_text(PAGE[title].code)
        tree = ast.parse(PAGE[title].code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(tree, str(path), "exec"), self.names)
                if last is not None:
                    value = eval(compile(ast.Expression(last.value), str(path), "eval"), self.names)
                    if value is not None:
                        print(repr(value))
            except Exception as error:
                print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        return out.getvalue().strip()


def expected(title: str, platform: Platform, path: Path) -> str:
    """What the page prints, with the names of the platform at hand."""
    words = {
        "{Device}": {"cpu": "CpuDevice", "sim": "SimDevice", "cuda": "CudaDevice"}[platform.name],
        "{PLATFORM}": {"cpu": "CPU", "sim": "SIM", "cuda": "GPU"}[platform.name],
        "{FILE}": str(path),
    }
    return re.sub(r"\{\w+\}", lambda match: words[match[0]], PAGE[title].prints).strip()


# The page gives NumPy's float64 to a library of 32-bit types. JAX narrows it silently; here there is a warning,
# which is not part of the page.
@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
def test_every_snippet_prints_what_the_page_prints(platform: Platform, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    printed = {title: reader.run(title) for title in PAGE}
    assert printed == {title: expected(title, platform, reader.path(title)) for title in PAGE}
    _check_values(reader.names)


def _check_values(names: dict[str, Any]) -> None:
    """What the page computes but does not print."""
    np.testing.assert_array_equal(np.asarray(names["xb"]), np.arange(8, dtype=np.float32))
    np.testing.assert_array_equal(np.asarray(names["y"]), np.asarray(names["x"]))
    assert float(names["a"] + names["c"]) == 4.0
    for i, result in enumerate(names["results"]):
        value = np.full((256, 256), i, np.float32)
        for _ in range(4):
            value = np.sin(value) + np.float32(1)
        np.testing.assert_allclose(np.asarray(result), value, rtol=2e-6)
        assert result.dtype == np.float32
        assert result.sharding.spec[0] == "x"


@pytest.mark.filterwarnings("ignore::cuplace.errors.NarrowingWarning")
def test_the_pipeline_is_traced_once_and_placed_on_four_meshes(platform: Platform, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for title in ("imports", "a mesh over all devices", "the pipeline"):
        reader.run(title)
    info = reader.names["stage"].cache_info()
    assert (info.traces, info.executables) == (1, 4)
