"""Benchmarks that compare cuplace with JAX and NumPy in one run: `bench.dispatch` and `bench.transfer`."""
