"""Builds the kernels with g++, once a session, and finds NVRTC."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuplace.runtime.strided import BOX

HERE = Path(__file__).resolve().parent
FLAGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
REQUEST = "32s4I6Q"


def absent(name: str, reason: str) -> None:
    """Skip the test; fail it where CUPLACE_REQUIRE names what it needs."""
    if name in os.environ.get("CUPLACE_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


class Runner:
    """A process that runs kernels on the CPU, thread by thread in shuffled order, under the sanitizers."""

    def __init__(self, program: Path) -> None:
        environment = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )

    def __call__(
        self, kernel: str, source: bytes, target: bytes, *, source_offset: int = 0, target_offset: int = 0,
        numbers: tuple[int, ...] = (), box: Any = None, blocks: int = 2, threads: int = 3, seed: int = 0,
    ) -> bytes:  # fmt: skip
        """The bytes of ``target`` after the kernel ran."""
        head = struct.pack(
            REQUEST, kernel.encode(), blocks, threads, seed, 0, len(source), source_offset, len(target),
            target_offset, *(*numbers, 0, 0)[:2],
        )  # fmt: skip
        record = np.zeros((), BOX) if box is None else box
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        stdin.write(head + record.tobytes() + source + target)
        stdin.flush()
        answer = stdout.read(len(target))
        if len(answer) != len(target):
            pytest.fail(stderr.read().decode())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        absent("g++", "no C++ compiler to run kernels on the CPU")
    path = tmp_path_factory.mktemp("kernels") / "runner"
    done = subprocess.run(
        [str(compiler), *FLAGS, HERE / "runner.cpp", "-o", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def run(program: Path) -> Iterator[Runner]:
    runner = Runner(program)
    yield runner
    runner.close()
