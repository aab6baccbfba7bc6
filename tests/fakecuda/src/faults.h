// Faults on demand: what a test wants to go wrong.
#pragma once

#include <driver_types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fakecuda {

// Calls are counted from the moment the fault is set: the first `skip` of them work, the next `count` fail.
struct Countdown {
  long skip = 0;
  long count = 0;

  bool hits() {
    if (count <= 0) return false;
    if (skip > 0) return --skip, false;
    return --count, true;
  }
};

struct LaunchFault {
  std::string kernel;  // part of its name
  int device;          // -1: any
  Countdown countdown;
  cudaError_t error;
  bool when_run;  // true: the device is lost when the kernel runs; false: the launch returns the error
};

struct Faults {
  std::set<std::pair<int, int>> no_peer;  // (device, peer)
  std::set<std::pair<int, int>> corrupt;  // (from, to): copies between them silently write zeros
  Countdown device_allocation, pinned_allocation;
  std::vector<LaunchFault> launches;
};

}  // namespace fakecuda
