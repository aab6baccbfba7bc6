// The control functions for faults (see faults.py).
#include "scheduler.h"

using namespace fakecuda;

namespace {

void put(std::set<std::pair<int, int>>& pairs, int first, int second, bool present) {
  if (present) pairs.insert({first, second});
  else pairs.erase({first, second});
}

}  // namespace

extern "C" {

void fake_fault_no_peer(int device, int peer, int present) {
  Call call(nullptr);
  put(state().faults.no_peer, device, peer, present);
  if (present) state().peers.erase({device, peer});
}

void fake_fault_corrupt(int from, int to, int present) {
  Call call(nullptr);
  put(state().faults.corrupt, from, to, present);
}

void fake_fault_memory_limit(int device, size_t bytes) {
  Call call(nullptr);
  state().devices[size_t(device)].limit = bytes;
}

void fake_fault_allocation(int pinned, long skip, long count) {
  Call call(nullptr);
  (pinned ? state().faults.pinned_allocation : state().faults.device_allocation) = Countdown{skip, count};
}

void fake_fault_launch(const char* kernel, int device, long skip, long count, int error, int when_run) {
  Call call(nullptr);
  state().faults.launches.push_back({kernel, device, Countdown{skip, count}, cudaError_t(error), when_run != 0});
}

void fake_fault_lose(int device, int error) {
  Call call(nullptr);
  state().devices[size_t(device)].lost = cudaError_t(error);
}

void fake_fault_clear() {
  Call call(nullptr);
  state().faults = Faults();
  for (auto& [handle, stream] : state().streams) {
    if (call.lost(stream->device) == cudaSuccess) continue;
    for (Op& op : stream->queue) op.run = nullptr;  // the memory that it was to use may be gone
  }
  for (Device& device : state().devices) {
    device.lost = cudaSuccess;
    device.limit = kDeviceMemory;
  }
}

}  // extern "C"
