// Call: what every function of the API begins with. It counts the call, notes the line of Python that it came from,
// takes the lock, and looks up handles.
#pragma once

#include "state.h"

namespace fakecuda {

class Call {
 public:
  // `name` null: a call of the test, not of the program; it is not counted.
  explicit Call(const char* name);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  operator Lock&() { return lock_; }
  Lock& lock() { return lock_; }
  // The calling thread, which acts from now on.
  Host& host() {
    act(lock_, *host_);
    return *host_;
  }
  const Place& place() const { return place_; }
  const char* name() const { return name_; }

  // The stream of a handle: null, legacy (1) and per-thread (2) ones too. Null where the handle is wrong (reported).
  Stream* stream(cudaStream_t handle);
  Event* event(cudaEvent_t handle);

  // The sticky error of a device, if it has one.
  cudaError_t lost(int device) const { return state().devices[size_t(device)].lost; }

  // Returns the error, and remembers it for cudaGetLastError.
  cudaError_t end(cudaError_t error);

  void blocks() { state().records.add_blocking(name_, place_); }
  // For calls that may block though they are no waits: allocations, frees.
  void may_block() { ++state().records.implicit[name_]; }
  SourcePtr source(const std::string& what) const;

 private:
  const char* name_;
  Place place_;
  Lock lock_;
  Host* host_;
};

cudaError_t take_last_error();

}  // namespace fakecuda

// The head of each function of the runtime API, of the driver API, and of those that need the current device.
#define FAKECUDA_ENTER                                    \
  if (fakecuda::forked()) return cudaErrorInitializationError; \
  fakecuda::Call call(__func__)
#define FAKECUDA_ENTER_DRIVER                             \
  if (fakecuda::forked()) return CUDA_ERROR_NOT_INITIALIZED;   \
  fakecuda::Call call(__func__)
#define FAKECUDA_ENTER_DEVICE \
  FAKECUDA_ENTER;             \
  if (cudaError_t lost = call.lost(fakecuda::current_device)) return call.end(lost)
