// Tells of the parameters that CuPy's generated kernels take. It comes after kernel_shim.h in sources of CuPy's.
#pragma once

#include <cuda_fp16.h>
#define __CUDACC_VER_MAJOR__ 12  // CuPy's headers then take float16 from there

#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>

namespace shim {

template <class T, int ndim, bool contiguous, bool small>
struct Describe<CArray<T, ndim, contiguous, small>> {
  static constexpr Param param = {sizeof(CArray<T, ndim, contiguous, small>), 'a', sizeof(T), ndim};
};
template <int ndim, bool small>
struct Describe<CIndexer<ndim, small>> {
  static constexpr Param param = {sizeof(CIndexer<ndim, small>), '.', 0, 0};
};
template <class T>
struct Describe<complex<T>> {
  static constexpr Param param = {sizeof(complex<T>), '.', 0, 0};
};

}  // namespace shim
