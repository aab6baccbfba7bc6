// The scheduler: streams are queues of operations, and the mode decides which ready operation runs when.
//
//   eager    whatever can run does, at every call
//   lazy     nothing runs until the host waits, then only what that wait needs
//   random   any ready operation, chosen by a seed, a few at every call
//   threads  three worker threads, with jitter
#pragma once

#include "call.h"
#include "state.h"

namespace fakecuda {

// What is to be enqueued.
struct Work {
  std::string what;
  std::function<void()> run = {};  // empty: only an order
  std::vector<Touch> touches = {};
  MarkerPtr after = {};  // something more to wait for
  const volatile int32_t* gate = nullptr;
  cudaError_t fault = cudaSuccess;
  WorkKind kind = WorkKind::copy;
  Event* record = nullptr;  // marks the end of this work from now on
  double cost_ns = 0;       // in virtual time
};

MarkerPtr enqueue(Call&, Stream&, Work);

void host_wait(Call&, const MarkerPtr&);   // block the caller until the marker is done
bool host_query(Call&, const MarkerPtr&);  // is it done? (lets other work advance a little)
// Blocks until the device has no work. `learn`: what was waited for happens before what the caller does next.
void host_wait_device(Call&, int device, bool learn);

void set_mode(Call&, Mode mode, unsigned seed);
// Runs all that is queued, as a wait of the caller; kernels that wait for a closed gate are left out, and reported.
void drain(Call&);
// Forgets accesses, clocks and destroyed streams. Nothing may be queued.
void forget_past(Lock&);

Stream* make_stream(Lock&, int device, unsigned flags, int priority);
void drop_if_finished(Lock&, Stream&);
std::string label(const Stream&);

}  // namespace fakecuda
