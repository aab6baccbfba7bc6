"""Kernels under the address sanitizer: what they touch is what they are declared to touch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fakecuda.run_sanitized import environment

pytestmark = pytest.mark.usefixtures("installed")

SCRIPT = r"""
import json
import numpy as np
from tests import fakecuda

fakecuda.install(devices=2)
import cupy as cp

KERNELS = '''
extern "C" __global__ void put(float* x, int i) { x[i] = 1; }
extern "C" __global__ void sums(const float* x, float* y) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[0] = part[0];
}
extern "C" __global__ void shared_overflow(float* x, int i) {
  extern __shared__ float part[];
  part[i] = 1;
  x[0] = part[i];
}
'''
module = cp.RawModule(code=KERNELS)
put, sums, shared_overflow = (module.get_function(name) for name in ("put", "sums", "shared_overflow"))
x = cp.zeros(64, cp.float32)
found = {}

def reports(name):
    found[name] = [str(report) for report in fakecuda.take_reports()]

def declared_put(i):
    fakecuda.kernel_access([], [x[8:16]])
    put((1,), (1,), (x, np.int32(i)))

declared_put(8)
declared_put(15)
sums((1,), (64,), (cp.ones(64, cp.float32), x))
y = cp.concatenate([x[::2] * 2, x.reshape(8, 8).sum(axis=0)])
y[cp.asarray([1, 3])] = 0
cp.cuda.Stream.null.synchronize()
reports("correct")
declared_put(16)
reports("beside what is declared")
declared_put(7)
reports("before what is declared")
put((1,), (1,), (x, np.int32(128)))  # of 512 bytes, as CuPy's pool rounds
reports("beyond the block")
shared_overflow((1,), (1,), (x, np.int32(9)), shared_mem=32)
reports("shared memory")
print("FOUND " + json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout + done.stderr
    result: dict[str, list[str]] = json.loads(lines[0].removeprefix("FOUND "))
    return result


def test_correct_kernels_are_not_blamed(found: dict[str, list[str]]) -> None:
    assert found["correct"] == []


@pytest.mark.parametrize(
    "case", ["beside what is declared", "before what is declared", "beyond the block", "shared memory"]
)
def test_other_bytes_are_reported(found: dict[str, list[str]], case: str) -> None:
    (report,) = found[case]
    assert report.startswith("sanitizer: ERROR: AddressSanitizer")
