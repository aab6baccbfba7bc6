// Copies: of bytes, rows or slices, between any two of host and devices, with CUDA's rules on when they return.
#pragma once

#include "call.h"

namespace fakecuda {

struct Copy {
  void* to;
  const void* from;
  size_t width;  // bytes a row
  size_t rows = 1, slices = 1;
  size_t to_pitch = 0, from_pitch = 0;  // bytes from row to row
  size_t to_slice = 0, from_slice = 0;  // bytes from slice to slice

  size_t bytes() const { return width * rows * slices; }
};

// `wait`: the call returns when the copy is done.
cudaError_t enqueue_copy(Call&, cudaStream_t handle, const Copy&, cudaMemcpyKind, bool wait);

}  // namespace fakecuda
