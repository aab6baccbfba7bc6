// Kernels that only spend time, or tell the host what time it is. Each runs as one thread.

#ifdef CUPLACE_HOST
#include <chrono>
#include <thread>

static unsigned long long nanoseconds() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void rest() { std::this_thread::yield(); }
#else
static __device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

static __device__ __forceinline__ void rest() { __nanosleep(500); }
#endif

// Holds its stream until the host sets *open (in mapped pinned memory), or until the time-out, so that a forgotten
// latch cannot hang a GPU. *outcome then tells: 1 opened, 2 timed out.
extern "C" __global__ void latch(
    const volatile unsigned* open, volatile unsigned* outcome, const unsigned long long timeout_ns) {
  const unsigned long long start = nanoseconds();
  while (!*open) {
    if (nanoseconds() - start > timeout_ns) {
      *outcome = 2;
      return;
    }
    rest();
  }
  *outcome = 1;
}

// Tells the host, by a word of mapped pinned memory, that its stream has come here.
extern "C" __global__ void arrive(volatile unsigned* word) { *word = 1; }

// Keeps its stream busy for a given time.
extern "C" __global__ void spin(const unsigned long long duration_ns) {
  const unsigned long long start = nanoseconds();
  while (nanoseconds() - start < duration_ns) rest();
}
