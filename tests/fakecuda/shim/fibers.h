// Fibers: functions that can stop and go on later, on one CPU thread, each on a stack of its own.
#pragma once

#include <stdint.h>
#include <sys/mman.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {

constexpr size_t kStackSize = 64 << 10;

enum class FiberState { ready, at_block_barrier, at_warp_barrier, done };

struct Fiber {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  const void* stack = nullptr;  // its lowest address and its size, for the address sanitizer
  size_t stack_size = 0;
  FiberState state = FiberState::ready;
  uint32_t warp_mask = 0;
  uint32_t exchanges = 0;  // how many shuffles and votes it has taken part in
};

// Stacks are kept for the next block.
inline char* stack_of(size_t i) {
  static thread_local std::vector<char*> stacks;
  while (stacks.size() <= i) {
    void* stack = mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks.push_back(static_cast<char*>(stack));
  }
  return stacks[i];
}

#if defined(__x86_64__)

// Saves what a call must keep, goes over to the other stack, and takes up there what was saved. `swapcontext` would
// do it, too, with two system calls each time.
__attribute__((naked, noinline)) inline void switch_stacks(void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n"
      "movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
      "ret\n");
}

inline void switch_plainly(Fiber& from, Fiber& to) { switch_stacks(&from.stack_pointer, to.stack_pointer); }

inline void prepare(Fiber& fiber, char* stack, void (*entry)()) {
  auto top = reinterpret_cast<uintptr_t>(stack + kStackSize) & ~uintptr_t(15);
  auto words = reinterpret_cast<void**>(top - 64);  // six registers, the entry, and a word that keeps the alignment
  for (int i = 0; i < 8; ++i) words[i] = nullptr;
  words[6] = reinterpret_cast<void*>(entry);
  fiber.stack_pointer = words;
  fiber.stack = stack;
  fiber.stack_size = kStackSize;
}

#else

inline void switch_plainly(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

inline void prepare(Fiber& fiber, char* stack, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStackSize;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
  fiber.stack = stack;
  fiber.stack_size = kStackSize;
}

#endif

#if defined(__SANITIZE_ADDRESS__)

inline void switch_fibers(Fiber& from, Fiber& to, bool last) {
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack, to.stack, to.stack_size);
  switch_plainly(from, to);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

// A new fiber tells the sanitizer that it is there, and learns the stack of whoever started it.
inline void arrive(Fiber& from) { __sanitizer_finish_switch_fiber(nullptr, &from.stack, &from.stack_size); }

#else

inline void switch_fibers(Fiber& from, Fiber& to, bool /*last*/) { switch_plainly(from, to); }
inline void arrive(Fiber& /*from*/) {}

#endif

}  // namespace shim
