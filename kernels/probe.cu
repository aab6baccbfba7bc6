// A pattern and its checksum: what shows that a path between two GPUs delivers the bytes it was given.

// Mixes all bits of x (the finalizer of SplitMix64).
__device__ __forceinline__ unsigned long long mix(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Fills `count` words with a pattern that no shift, repetition or constant resembles.
extern "C" __global__ void __launch_bounds__(256) fill(
    unsigned long long* target, const unsigned long long count, const unsigned long long seed) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    target[i] = mix(seed + i);
  }
}

// Adds a sum to *sum that depends on every word and on its place, but not on the order of the threads.
extern "C" __global__ void __launch_bounds__(256) checksum(
    const unsigned long long* source, const unsigned long long count, unsigned long long* sum) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    mine += mix(source[i] + i * 0x9E3779B97F4A7C15ull);
  }
  if (mine) atomicAdd(sum, mine);
}
