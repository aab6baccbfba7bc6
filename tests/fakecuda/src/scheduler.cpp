#include "scheduler.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "checker.h"
#include "guard.h"
#include "memory.h"
#include "sanitizer.h"
#include "virtual_time.h"

namespace fakecuda {

namespace {

constexpr int kWorkers = 3;
constexpr auto kGatePoll = std::chrono::milliseconds(1);

// --- what may run --------------------------------------------------------------------------------------------------

MarkerPtr unmet_wait(const Op& op) {
  for (const MarkerPtr& marker : op.waits) {
    if (!marker->done) return marker;
  }
  return nullptr;
}

bool gate_open(Lock& lock, const Op& op) {
  if (!op.gate.flag) return true;
  Block* block = find_block(lock, const_cast<const int32_t*>(op.gate.flag));
  return block && !block->freed && *op.gate.flag != 0;
}

std::vector<Stream*> ready_streams(Lock& lock) {
  std::vector<Stream*> ready;
  for (auto& [handle, stream] : state().active) {
    if (stream->busy || stream->queue.empty()) continue;
    const Op& op = stream->queue.front();
    if (!unmet_wait(op) && gate_open(lock, op)) ready.push_back(stream);
  }
  return ready;
}

// --- running -------------------------------------------------------------------------------------------------------

void lose(Lock& lock, int device, cudaError_t error, const std::string& what, const std::string& why) {
  if (state().devices[size_t(device)].lost != cudaSuccess) return;
  state().devices[size_t(device)].lost = error;
  report(lock, "device lost", "device " + std::to_string(device) + " in " + what + ": " + why);
}

// Kernels are compiled so that a misaligned access is an illegal instruction.
cudaError_t fault_error(const MemoryFault& fault) {
  return fault.signal == SIGILL ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress;
}

std::string fault_text(const MemoryFault& fault) {
  if (fault.signal == SIGILL) return "a misaligned access";
  char address[32];
  snprintf(address, sizeof address, "0x%zx", size_t(fault.address));
  return "signal " + std::to_string(fault.signal) + " at address " + address;
}

MemoryFault run_op(const Op& op) {
  if (op.kind == WorkKind::python) {
    op.run();
    return {};
  }
  SanitizedRun alone(op.kind == WorkKind::kernel ? &op.fence : nullptr);
  return run_guarded(op.run);
}

void run_front(Lock& lock, Stream& stream) {
  Op op = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (stream.queue.empty()) state().active.erase(stream.handle);
  stream.busy = true;
  if (op.fault != cudaSuccess) lose(lock, stream.device, op.fault, op.what, "as the test wants it");
  if (op.run && state().devices[size_t(stream.device)].lost == cudaSuccess) {
    lock.unlock();
    MemoryFault fault = run_op(op);
    lock.lock();
    if (fault.signal) lose(lock, stream.device, fault_error(fault), op.what, fault_text(fault));
  }
  note_times(lock, stream, op);
  op.end->done = true;
  op.end->stream = nullptr;
  stream.busy = false;
  drop_if_finished(lock, stream);
  state().changed.notify_all();
}

bool run_random(Lock& lock) {
  std::vector<Stream*> ready = ready_streams(lock);
  if (ready.empty()) return false;
  run_front(lock, *ready[state().rng() % ready.size()]);
  return true;
}

// What every call does for the progress of the work, by the mode.
void make_progress(Lock& lock) {
  if (state().mode == Mode::eager) {
    for (auto ready = ready_streams(lock); !ready.empty(); ready = ready_streams(lock)) run_front(lock, *ready.front());
  } else if (state().mode == Mode::random) {
    for (unsigned n = state().rng() % 3; n > 0 && run_random(lock); --n) {
    }
  }
}

// One step towards a marker. In lazy mode nothing else runs; false: another thread or a gate is in the way.
bool step_towards(Lock& lock, std::vector<MarkerPtr>& goals) {
  if (state().mode == Mode::random) return run_random(lock);
  if (state().mode == Mode::threads) return false;
  Stream& stream = *goals.back()->stream;
  if (stream.busy || stream.queue.empty()) return false;
  const Op& op = stream.queue.front();
  if (MarkerPtr unmet = unmet_wait(op)) {
    goals.push_back(unmet);
    return true;
  }
  if (!gate_open(lock, op)) return false;
  run_front(lock, stream);
  return true;
}

// A kernel that has waited too long for its flag is left out.
void open_late_gates(Lock& lock) {
  for (auto& [handle, stream] : state().active) {
    if (stream->busy || stream->queue.empty()) continue;
    Op& op = stream->queue.front();
    if (gate_open(lock, op) || unmet_wait(op) || now_ms() < op.gate.deadline_ms) continue;
    report(lock, "latch timed out", op.what + " on " + label(*stream));
    op.gate.flag = nullptr;
    op.run = nullptr;
  }
}

// Runs what it takes for the marker to be done. False: it would have to wait for another thread and may not block.
bool force(Lock& lock, const MarkerPtr& target, bool may_block) {
  std::vector<MarkerPtr> goals{target};  // a stack, not recursion: chains can be long
  while (!goals.empty()) {
    if (goals.back()->done) {
      goals.pop_back();
    } else if (!step_towards(lock, goals)) {
      if (!may_block) return false;
      state().changed.wait_for(lock, kGatePoll);
      open_late_gates(lock);
    }
  }
  return true;
}

// --- threads -------------------------------------------------------------------------------------------------------

void work() {
  Lock lock(state().mutex);
  std::mt19937 rng(1);
  for (;;) {
    std::vector<Stream*> ready;
    if (state().mode == Mode::threads) ready = ready_streams(lock);
    if (ready.empty()) {
      if (state().active.empty()) state().changed.wait(lock);
      else state().changed.wait_for(lock, kGatePoll);  // a gate opens without a call
    } else if (rng() % 4 == 0) {  // jitter; the choice may be stale after it, so choose again
      lock.unlock();
      usleep(useconds_t(rng() % 200));
      lock.lock();
    } else {
      run_front(lock, *ready[rng() % ready.size()]);
    }
  }
}

void start_workers(Lock&) {
  static bool started = false;
  if (started || state().mode != Mode::threads) return;
  started = true;
  for (int i = 0; i < kWorkers; ++i) std::thread(work).detach();
}

// --- enqueueing ----------------------------------------------------------------------------------------------------

void depend_on(Op& op, Stream& stream, const MarkerPtr& marker) {
  if (!marker) return;
  if (!marker->done) op.waits.push_back(marker);
  op.ready_ns = std::max(op.ready_ns, marker->end_ns);
  stream.clock.join(marker->clock);
}

// The default stream waits for the device's blocking streams, and they wait for it.
void order_with_default_stream(Op& op, Stream& stream) {
  Stream* default_stream = state().devices[size_t(stream.device)].default_stream;
  if (&stream != default_stream) {
    if (stream.blocking()) depend_on(op, stream, default_stream->tail);
    return;
  }
  for (auto& [handle, other] : state().streams) {
    bool related = other.get() != &stream && other->device == stream.device && other->blocking();
    if (related) depend_on(op, stream, other->tail);
  }
  stream.clock.join(state().devices[size_t(stream.device)].gone_blocking);
}

// Runs an operation at once, without a queue, where that is what the mode would do anyway.
bool runs_at_once(const Stream& stream, const Op& op) {
  return state().mode == Mode::eager && !op.run && op.fault == cudaSuccess && stream.queue.empty() && !stream.busy &&
         op.waits.empty() && !op.gate.flag;
}

}  // namespace

MarkerPtr enqueue(Call& call, Stream& stream, Work work) {
  Lock& lock = call.lock();
  start_workers(lock);

  Op op;
  op.run = std::move(work.run);
  op.kind = work.kind;
  if (work.kind == WorkKind::kernel && has_sanitizer()) op.fence = work.touches;
  op.what = work.what;
  op.gate = {work.gate, now_ms() + state().gate_timeout_ms};
  op.fault = work.fault;
  op.cost_ns = work.cost_ns;
  op.enqueued_ns = state().time.host_ns;
  op.end = std::make_shared<Marker>();
  op.end->stream = &stream;
  stream.clock.join(call.host().clock);
  depend_on(op, stream, work.after);
  order_with_default_stream(op, stream);
  stream.clock.advance(stream.actor);

  if (!work.touches.empty()) {
    auto source = std::make_shared<Source>(Source{work.what, label(stream), call.place()});
    for (const Touch& touch : work.touches) {
      if (!check_access(lock, touch, stream.actor, stream.clock, source)) op.run = nullptr;  // it would crash
    }
  }
  op.end->clock = stream.clock;
  stream.tail = op.end;
  if (work.record) work.record->marker = op.end;
  call.host().clock.advance(call.host().actor);

  MarkerPtr end = op.end;
  if (runs_at_once(stream, op)) {
    note_times(lock, stream, op);
    end->done = true;
    return end;
  }
  stream.queue.push_back(std::move(op));
  state().active[stream.handle] = &stream;
  make_progress(lock);
  if (state().mode == Mode::threads) state().changed.notify_all();
  return end;
}

void host_wait(Call& call, const MarkerPtr& marker) {
  if (!marker) return;
  make_progress(call.lock());
  force(call.lock(), marker, true);
  advance_host(call.lock(), marker);
  call.host().clock.join(marker->clock);
}

bool host_query(Call& call, const MarkerPtr& marker) {
  if (!marker) return true;
  make_progress(call.lock());
  // A caller that polls must get there in the end, but not at once.
  if (state().mode == Mode::lazy && !marker->done && ++state().polls % 3 == 0) force(call.lock(), marker, false);
  if (!seen_by_host(call.lock(), marker)) return false;
  call.host().clock.join(marker->clock);
  return true;
}

void host_wait_device(Call& call, int device, bool learn) {
  std::vector<MarkerPtr> tails;
  for (auto& [handle, stream] : state().streams) {
    if (stream->device == device && stream->tail) tails.push_back(stream->tail);
  }
  make_progress(call.lock());
  for (const MarkerPtr& tail : tails) {
    force(call.lock(), tail, true);
    advance_host(call.lock(), tail);
    if (learn) call.host().clock.join(tail->clock);
  }
  if (learn) call.host().clock.join(state().devices[size_t(device)].gone);
}

void set_mode(Call& call, Mode mode, unsigned seed) {
  drain(call);
  state().mode = mode;
  state().rng.seed(seed);
  state().polls = 0;
  state().launches = seed;
  start_workers(call.lock());
  state().changed.notify_all();
}

void drain(Call& call) {
  Lock& lock = call.lock();
  auto busy = [](const auto& entry) { return entry.second->busy; };
  for (auto& [handle, stream] : state().streams) {
    for (Op& op : stream->queue) op.gate.deadline_ms = 0;
  }
  while (!state().active.empty()) {
    open_late_gates(lock);
    MarkerPtr tail = state().active.begin()->second->tail;
    force(lock, tail, true);
  }
  while (std::any_of(state().streams.begin(), state().streams.end(), busy)) state().changed.wait_for(lock, kGatePoll);
  for (auto& [handle, stream] : state().streams) {
    if (stream->tail) call.host().clock.join(stream->tail->clock);
  }
  for (Device& device : state().devices) call.host().clock.join(device.gone);
}

void forget_past(Lock& lock) {
  State& st = state();
  st.actors = 0;
  st.handovers.clear();
  for (Device& device : st.devices) device.gone = device.gone_blocking = Clock();
  for (auto it = st.streams.begin(); it != st.streams.end();) {
    Stream& stream = *(it++)->second;
    stream.clock = Clock();
    stream.tail = nullptr;
    stream.actor = new_actor();
    drop_if_finished(lock, stream);
  }
  for (auto& [handle, event] : st.events) event->marker = nullptr;
  for (Host* host : st.hosts) {
    if (!host->acts) continue;
    host->clock = Clock();
    host->actor = new_actor();
    host->clock.advance(host->actor);
  }
}

Stream* make_stream(Lock&, int device, unsigned flags, int priority) {
  static uintptr_t next = 0x10000;  // handles are not used again, so that a stale one is noticed
  auto stream = std::make_unique<Stream>();
  stream->handle = next;
  next += 0x10;
  stream->actor = new_actor();
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  Stream* made = stream.get();
  state().streams[made->handle] = std::move(stream);
  return made;
}

void drop_if_finished(Lock&, Stream& stream) {
  if (!stream.destroyed || !stream.queue.empty() || stream.busy) return;
  Device& device = state().devices[size_t(stream.device)];
  device.gone.join(stream.clock);
  if (stream.blocking()) device.gone_blocking.join(stream.clock);
  state().streams.erase(stream.handle);
}

std::string label(const Stream& stream) {
  std::string device = " of device " + std::to_string(stream.device);
  if (!stream.name.empty()) return stream.name + device;
  if (stream.handle < 0x10000) return "default stream" + device;
  return "stream " + std::to_string(stream.actor) + device;
}

}  // namespace fakecuda
