// What a kernel compiled for the CPU and its caller tell each other.
#pragma once

#include <stdint.h>

namespace shim {

// One parameter of a kernel, as its type tells.
//   '.' a number, or a struct of numbers     's' another struct, which may hide pointers
//   'r' pointer to const   'b' pointer   'v' pointer to volatile: a flag
//   'a' one of CuPy's arrays: address, size, shape[ndim], strides[ndim]
struct Param {
  int32_t size;
  char kind;
  int32_t itemsize;
  int32_t ndim;
};

struct Launch {
  void** args;
  const uint32_t* grid;
  const uint32_t* block;
  uint32_t shared;  // bytes of dynamic shared memory
  uint32_t seed;    // of the order in which threads run
};

// What was odd about a run.
struct Outcome {
  int32_t divergent_barriers;  // barriers that not all threads of a block reached
};

using Run = void (*)(const Launch*, Outcome*);

}  // namespace shim
