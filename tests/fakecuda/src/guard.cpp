#include "guard.h"

#include <setjmp.h>
#include <signal.h>

#include <mutex>

namespace fakecuda {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};

struct sigaction earlier[65];
thread_local sigjmp_buf* way_out = nullptr;
thread_local MemoryFault fault;

void handle(int signal, siginfo_t* info, void*) {
  if (!way_out) {
    // Not ours: put the earlier handler back, and let the instruction fault again.
    sigaction(signal, &earlier[signal], nullptr);
    return;
  }
  fault = {signal, reinterpret_cast<uintptr_t>(info->si_addr)};
  siglongjmp(*way_out, 1);
}

void install() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int signal : kSignals) sigaction(signal, &action, &earlier[signal]);
}

}  // namespace

MemoryFault run_guarded(const std::function<void()>& function) {
  static std::once_flag once;
  std::call_once(once, install);
  sigjmp_buf here;
  sigjmp_buf* outer = way_out;
  fault = {};
  if (sigsetjmp(here, 0) == 0) {  // the mask needs no saving: SA_NODEFER leaves it as it is
    way_out = &here;
    function();
  }
  way_out = outer;
  return fault;
}

}  // namespace fakecuda
