// Runs a function and survives its memory faults, as a GPU's driver survives those of a kernel.
#pragma once

#include <cstdint>
#include <functional>

namespace fakecuda {

struct MemoryFault {
  int signal = 0;  // 0: none
  uintptr_t address = 0;
};

MemoryFault run_guarded(const std::function<void()>& function);

}  // namespace fakecuda
