// The control functions for virtual time (see virtual_time.py).
#include "scheduler.h"
#include "virtual_time.h"

using namespace fakecuda;

extern "C" {

void fake_start_time(double kernel_ns, double copy_ns, double byte_ns, double call_ns) {
  Call call(nullptr);
  drain(call);
  start_time(call, {kernel_ns, copy_ns, byte_ns, call_ns});
}

void fake_stop_time() {
  Call call(nullptr);
  drain(call);
  stop_time(call);
}

double fake_now_ns() {
  Call call(nullptr);
  return state().time.host_ns;
}

void fake_pass_ns(double nanoseconds) {
  Call call(nullptr);
  state().time.host_ns += nanoseconds;
}

// The clock of a device makes so many ticks in a unit of the host's time.
void fake_set_ticks(int device, double ticks) {
  Call call(nullptr);
  state().devices[size_t(device)].ticks = ticks;
}

}  // extern "C"
