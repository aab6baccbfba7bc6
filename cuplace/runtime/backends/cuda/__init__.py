"""The cuda platform: CuPy arrays, CUDA streams and events, on NVIDIA GPUs. The only place that imports CuPy."""

from __future__ import annotations
