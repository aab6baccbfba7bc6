// What kernels compiled for the CPU call: the indices of the running thread, and barriers. It is compiled once, in
// runtime.cpp, into a library that all kernels share.
#pragma once

#include <stdint.h>
#include <vector_types.h>

#include "launch.h"

namespace shim {

extern thread_local uint3 thread_idx, block_idx;
extern thread_local dim3 block_dim, grid_dim;
extern thread_local char* dynamic_shared_memory;

// Waits for all threads of the block, or for those of the warp that the mask names.
void block_barrier();
void warp_barrier(uint32_t mask);

// Gives a value to the warp and returns what all 32 lanes gave last. `lanes`: how many the warp really has.
const uint64_t* exchange(uint32_t mask, uint64_t value, int* lane, int* lanes);

// A clock that is ahead of the real one by what kernels have slept, so that no CPU time is spent on sleeping.
int64_t clock_ns();
void sleep_ns(int64_t ns);

// Runs all threads of a grid: `thread(args)` is one of them. With `fibers` they can wait for one another.
void run_grid(void (*thread)(void**), const Launch* launch, bool fibers, Outcome* outcome);

}  // namespace shim
