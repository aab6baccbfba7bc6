#include "virtual_time.h"

#include <algorithm>
#include <cstring>

namespace fakecuda {

namespace {

VirtualTime& time_now() { return state().time; }

}  // namespace

void start_time(Lock&, const Costs& costs) {
  time_now().on = true;
  time_now().costs = costs;
}

void stop_time(Lock&) {
  VirtualTime& time = time_now();
  time.on = false;
  time.host_ns = std::max(time.host_ns, time.last_ns);
  for (Device& device : state().devices) device.ticks = 1;
}

void pass_call(Lock&) {
  VirtualTime& time = time_now();
  ++time.calls;
  if (time.on) time.host_ns += time.costs.call_ns;
}

void note_times(Lock&, Stream& stream, const Op& op) {
  if (!time_now().on) {
    op.end->time_ms = now_ms();
    return;
  }
  double start = std::max({stream.free_ns, op.ready_ns, op.enqueued_ns});
  for (const MarkerPtr& marker : op.waits) start = std::max(start, marker->end_ns);
  if (op.gate.flag) start = std::max(start, time_now().host_ns);  // which has opened it by now
  stream.free_ns = op.end->end_ns = start + op.cost_ns;
  time_now().last_ns = std::max(time_now().last_ns, op.end->end_ns);
  op.end->time_ms = op.end->end_ns * state().devices[size_t(stream.device)].ticks * 1e-6;
}

bool seen_by_host(Lock&, const MarkerPtr& marker) {
  VirtualTime& time = time_now();
  if (!time.on) return marker->done;
  bool again = time.asked == marker.get() && time.asked_at + 1 == time.calls;
  time.asked = marker.get();
  time.asked_at = time.calls;
  if (again && marker->done) time.host_ns = std::max(time.host_ns, marker->end_ns);
  return marker->done && marker->end_ns <= time.host_ns;
}

void advance_host(Lock&, const MarkerPtr& marker) {
  VirtualTime& time = time_now();
  if (time.on) time.host_ns = std::max(time.host_ns, marker->end_ns);
}

bool is_spin(const std::string& kernel) { return kernel.find("spin") != std::string::npos; }

double kernel_cost(const std::string& kernel, const std::vector<int>& sizes, void** args) {
  const VirtualTime& time = time_now();
  if (kernel.find("latch") != std::string::npos) return 0;
  if (!is_spin(kernel) || sizes.empty() || sizes[0] != 8) return time.costs.kernel_ns;
  uint64_t nanoseconds;
  memcpy(&nanoseconds, args[0], sizeof nanoseconds);
  return double(nanoseconds);
}

double copy_cost(size_t bytes) {
  const Costs& costs = time_now().costs;
  return costs.copy_ns + costs.byte_ns * double(bytes);
}

}  // namespace fakecuda
