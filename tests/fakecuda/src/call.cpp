#include "call.h"

#include "scheduler.h"
#include "virtual_time.h"

namespace fakecuda {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr uintptr_t kPerThread = 2;  // cudaStreamPerThread; 0 and 1 are the legacy default stream

Stream* own_stream(Lock& lock, Host& host, int device) {
  Stream*& stream = host.own_streams[device];
  if (!stream) {
    stream = make_stream(lock, device, cudaStreamDefault, 0);
    stream->name = "per-thread default stream of host thread " + std::to_string(host.number);
  }
  return stream;
}

}  // namespace

Call::Call(const char* name)
    : name_(name), place_(name ? here() : Place{}), lock_(state().mutex), host_(&this_host(lock_)) {
  if (!name) return;
  ++state().records.calls[name];
  pass_call(lock_);
}

Stream* Call::stream(cudaStream_t handle) {
  auto number = reinterpret_cast<uintptr_t>(handle);
  if (number == kPerThread) return own_stream(lock_, *host_, current_device);
  if (number < kPerThread) return state().devices[size_t(current_device)].default_stream;
  auto found = state().streams.find(number);
  if (found != state().streams.end() && !found->second->destroyed) return found->second.get();
  report(lock_, "invalid handle", "a stream that does not exist, or was destroyed", {{"use", source(name_)}});
  return nullptr;
}

Event* Call::event(cudaEvent_t handle) {
  auto found = state().events.find(reinterpret_cast<uintptr_t>(handle));
  if (found != state().events.end()) return found->second.get();
  report(lock_, "invalid handle", "an event that does not exist, or was destroyed", {{"use", source(name_)}});
  return nullptr;
}

cudaError_t Call::end(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

SourcePtr Call::source(const std::string& what) const {
  return std::make_shared<Source>(Source{what, "host thread " + std::to_string(host_->number), place_});
}

cudaError_t take_last_error() { return std::exchange(last_error, cudaSuccess); }

}  // namespace fakecuda
