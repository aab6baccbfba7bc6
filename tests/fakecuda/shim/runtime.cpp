// The library that all kernels share: runs the threads of a grid on one CPU thread, one after another, in an order
// that the seed shuffles. Threads that can wait for one another are fibers.
#include "runtime.h"

#include <time.h>

#include <vector>

#include "fibers.h"

namespace shim {

thread_local uint3 thread_idx, block_idx;
thread_local dim3 block_dim, grid_dim;
thread_local char* dynamic_shared_memory = nullptr;

namespace {

struct Block {
  std::vector<Fiber> fibers;
  Fiber scheduler;
  Fiber* current = nullptr;
  uint32_t current_index = 0;
  std::vector<uint64_t> slots[2];  // what threads give each other in shuffles and votes
};

thread_local Block* running = nullptr;
thread_local void (*thread_body)(void**) = nullptr;
thread_local void** thread_args = nullptr;
thread_local int64_t slept_ns = 0;

// A permutation of 0 ... count - 1, without a table: n -> (n * step + start) % count.
class Shuffled {
 public:
  Shuffled(uint64_t count, uint32_t seed) : count_(count) {
    uint64_t mixed = (uint64_t(seed) + 1) * 0x9E3779B97F4A7C15ull;
    start_ = (mixed >> 32) % count;
    step_ = (mixed & 0xffffffff) % count;
    while (gcd(step_, count) != 1) step_ = (step_ + 1) % count;
  }

  uint64_t operator()(uint64_t n) const { return (n * step_ + start_) % count_; }

 private:
  static uint64_t gcd(uint64_t a, uint64_t b) { return b == 0 ? a : gcd(b, a % b); }

  uint64_t count_, start_, step_;
};

void set_thread(uint32_t i) {
  thread_idx = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
}

void set_block(uint64_t i) {
  block_idx = {unsigned(i % grid_dim.x), unsigned(i / grid_dim.x % grid_dim.y),
               unsigned(i / (uint64_t(grid_dim.x) * grid_dim.y))};
}

// --- fibers --------------------------------------------------------------------------------------------------------

// Goes from the running fiber back to the scheduler, until the fiber is chosen again.
void pause(FiberState state) {
  running->current->state = state;
  switch_fibers(*running->current, running->scheduler, state == FiberState::done);
}

void fiber_main() {
  arrive(running->scheduler);
  thread_body(thread_args);
  pause(FiberState::done);
}

void resume(uint32_t i) {
  Block& block = *running;
  block.current = &block.fibers[i];
  block.current_index = i;
  block.current->state = FiberState::ready;
  set_thread(i);
  switch_fibers(block.scheduler, *block.current, false);
}

// A warp's barrier opens when every thread that the mask names is there, or has ended.
bool warp_barrier_open(const Block& block, uint32_t i) {
  uint32_t first = i / 32 * 32;
  for (uint32_t lane = 0; lane < 32 && first + lane < block.fibers.size(); ++lane) {
    if (!(block.fibers[i].warp_mask >> lane & 1)) continue;
    FiberState state = block.fibers[first + lane].state;
    if (state != FiberState::at_warp_barrier && state != FiberState::done) return false;
  }
  return true;
}

// Opens the barriers that are complete. False: no thread can go on.
bool open_barriers(Block& block) {
  std::vector<Fiber*> released;
  bool all_at_block_barrier = true;
  for (uint32_t i = 0; i < block.fibers.size(); ++i) {
    Fiber& fiber = block.fibers[i];
    if (fiber.state == FiberState::at_warp_barrier && warp_barrier_open(block, i)) released.push_back(&fiber);
    if (fiber.state != FiberState::at_block_barrier && fiber.state != FiberState::done) all_at_block_barrier = false;
  }
  for (Fiber& fiber : block.fibers) {
    if (all_at_block_barrier && fiber.state == FiberState::at_block_barrier) released.push_back(&fiber);
  }
  for (Fiber* fiber : released) fiber->state = FiberState::ready;
  return !released.empty();
}

// Where not all threads reach a barrier, a GPU may hang or go on. Here they go on, and it is counted.
void open_all(Block& block) {
  for (Fiber& fiber : block.fibers) {
    if (fiber.state != FiberState::done) fiber.state = FiberState::ready;
  }
}

int run_fibers(uint32_t threads, const Shuffled& order) {
  static thread_local Block block;
  block.fibers.assign(threads, Fiber());
  for (auto& slots : block.slots) slots.resize((threads + 31) / 32 * 32);
  running = &block;
  for (uint32_t i = 0; i < threads; ++i) prepare(block.fibers[i], stack_of(i), fiber_main);
  int divergent = 0;
  for (uint32_t left = threads; left > 0;) {
    for (uint32_t n = 0; n < threads; ++n) {
      uint32_t i = uint32_t(order(n));
      if (block.fibers[i].state != FiberState::ready) continue;
      resume(i);
      left -= block.fibers[i].state == FiberState::done;
    }
    if (left > 0 && !open_barriers(block)) {
      open_all(block);
      ++divergent;
    }
  }
  running = nullptr;
  return divergent;
}

void run_in_turn(uint32_t threads, const Shuffled& order) {
  for (uint32_t n = 0; n < threads; ++n) {
    set_thread(uint32_t(order(n)));
    thread_body(thread_args);
  }
}

}  // namespace

// --- what kernels call ---------------------------------------------------------------------------------------------

void block_barrier() {
  if (running) pause(FiberState::at_block_barrier);
}

void warp_barrier(uint32_t mask) {
  if (!running) return;
  running->current->warp_mask = mask;
  pause(FiberState::at_warp_barrier);
}

// Two sets of slots take turns, so that a thread that is ahead by one exchange overwrites nothing that others read.
const uint64_t* exchange(uint32_t mask, uint64_t value, int* lane, int* lanes) {
  uint32_t me = running->current_index, first = me / 32 * 32;
  std::vector<uint64_t>& slots = running->slots[running->current->exchanges++ % 2];
  slots[me] = value;
  warp_barrier(mask);
  uint32_t left = uint32_t(running->fibers.size()) - first;
  *lane = int(me - first);
  *lanes = int(left < 32 ? left : 32);
  return &slots[first];
}

int64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t(1000000000) + now.tv_nsec + slept_ns;
}

void sleep_ns(int64_t ns) { slept_ns += ns; }

void run_grid(void (*thread)(void**), const Launch* launch, bool fibers, Outcome* outcome) {
  grid_dim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  block_dim = dim3(launch->block[0], launch->block[1], launch->block[2]);
  running = nullptr;  // where a fault has ended the last kernel, it still holds its block
  thread_body = thread;
  thread_args = launch->args;
  std::vector<char> shared(launch->shared);  // aligned to 16 bytes, as all that `new` returns
  dynamic_shared_memory = shared.data();
  uint32_t threads = block_dim.x * block_dim.y * block_dim.z;
  uint64_t blocks = uint64_t(grid_dim.x) * grid_dim.y * grid_dim.z;
  Shuffled order(blocks, launch->seed);
  for (uint64_t n = 0; n < blocks; ++n) {
    set_block(order(n));
    Shuffled thread_order(threads, launch->seed + uint32_t(n));
    if (fibers) outcome->divergent_barriers += run_fibers(threads, thread_order);
    else run_in_turn(threads, thread_order);
  }
  dynamic_shared_memory = nullptr;
}

}  // namespace shim
