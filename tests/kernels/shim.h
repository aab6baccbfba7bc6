// What CUDA C++ kernels of this project need to be compiled by g++ and run on one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#define CUPLACE_HOST 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(threads)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct Place {
  unsigned x;
};
static Place blockIdx, threadIdx, blockDim, gridDim;

inline void atomicAdd(unsigned long long* sum, unsigned long long value) { *sum += value; }

// Runs every thread of a one-dimensional grid once, in an order that the seed chooses.
template <class Kernel>
void run_shuffled(unsigned blocks, unsigned threads, unsigned seed, Kernel kernel) {
  std::vector<std::pair<unsigned, unsigned>> order;
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < threads; ++thread) order.push_back({block, thread});
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  gridDim.x = blocks;
  blockDim.x = threads;
  for (auto [block, thread] : order) {
    blockIdx.x = block;
    threadIdx.x = thread;
    kernel();
  }
}
