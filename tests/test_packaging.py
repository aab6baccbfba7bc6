"""What the wheel holds is what the tree holds."""

from __future__ import annotations

import importlib.util
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import cuplace
from cuplace import kernels

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_of_the_tree_is_listed() -> None:
    packages = PROJECT["tool"]["setuptools"]["packages"]
    folders = [path.parent for path in (ROOT / "cuplace").rglob("__init__.py")]
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(packages) == found | {"cuplace.bench", "cuplace.kernels"}
    assert len(packages) == len(set(packages))


def test_the_kernels_package_gives_the_paths_of_its_sources() -> None:
    folder = ROOT / "kernels"
    expected = {path.name: path for path in folder.iterdir() if path.suffix in (".cu", ".cuh")}
    assert kernels.sources() == expected
    for name, path in expected.items():
        assert kernels.source_path(name) == path


def test_a_kernel_source_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"No kernel source 'nothing\.cu'"):
        kernels.source_path("nothing.cu")


def test_the_version_is_a_plain_literal() -> None:
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "cuplace.__version__"}
    assert cuplace.__version__.count(".") == 2


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(cuplace.__file__).parent / "py.typed").is_file()


def test_a_machine_with_a_driver_gets_all_libraries_of_cuda() -> None:
    """By CuPy's own extra, for both versions of CUDA; those that an array module's functions need are in it."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert extras["cuda"] == ["cuplace[cuda12]"]
    for version in ("12", "13"):
        cupy, *others = map(Requirement, extras[f"cuda{version}"])
        assert (cupy.name, cupy.extras) == (f"cupy-cuda{version}x", {"ctk"})
        assert [other.name for other in others] == ["nvidia-ml-py"]
    if importlib.util.find_spec("cupy") is not None:
        asked = map(Requirement, metadata.requires("cupy-cuda12x") or ())
        (toolkit,) = [found for found in asked if found.marker and found.marker.evaluate({"extra": "ctk"})]
        assert toolkit.extras >= {"cublas", "cudart", "cufft", "cusolver", "nvrtc"}
