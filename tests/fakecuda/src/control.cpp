// The control functions that native.py calls: modes, reports, records, faults, and what the checker cannot see itself.
#include <cstring>

#include "checker.h"
#include "json.h"
#include "kernels.h"
#include "memory.h"
#include "sanitizer.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

// Texts are returned to Python from here: each thread has its own, valid until its next call.
const char* keep(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

std::string line_text(const Line* line) { return line ? quoted(line->text()) : "null"; }

std::string place_members(const Place& place) {
  return Joined("{}").member("user", line_text(place.user)).member("library", line_text(place.library)).text();
}

std::string report_text(const Report& report) {
  Joined sides("[]");
  for (const auto& [access, source] : report.sides) {
    Joined side("{}");
    side.member("what", quoted(source->what)).member("access", quoted(access)).member("actor", quoted(source->actor));
    side.member("user", line_text(source->place.user)).member("library", line_text(source->place.library));
    sides.item(side.text());
  }
  Joined joined("{}");
  joined.member("kind", quoted(report.kind)).member("text", quoted(report.text));
  return joined.member("sides", sides.text()).member("count", report.count).text();
}

std::string devices_text() {
  Joined devices("[]");
  for (const Device& device : state().devices) {
    Joined joined("{}");
    joined.member("used", long(device.used)).member("peak", long(device.peak)).member("limit", long(device.limit));
    devices.item(joined.member("lost", int(device.lost)).text());
  }
  return devices.text();
}

std::string bytes_text(const Records& records) {
  Joined bytes("[]");
  for (const auto& [pair, count] : records.bytes) {
    Joined entry("[]");
    for (int64_t number : {int64_t(pair.first), int64_t(pair.second), count}) entry.item(std::to_string(number));
    bytes.item(entry.text());
  }
  return bytes.text();
}

std::string blocking_text(const Records& records) {
  Joined calls("[]");
  for (const BlockingCall& blocking : records.blocking_calls) {
    Joined call("{}");
    calls.item(call.member("name", quoted(blocking.name)).member("place", place_members(blocking.place)).text());
  }
  return calls.text();
}

long user_streams() {
  long count = 0;
  for (const auto& [handle, stream] : state().streams) {
    count += !stream->destroyed && stream.get() != state().devices[size_t(stream->device)].default_stream;
  }
  return count;
}

long acting_hosts() {
  long count = 0;
  for (const Host* host : state().hosts) count += host->acts;
  return count;
}

long blocks_of(MemoryKind kind) {
  long count = 0;
  for (const auto& [address, block] : state().blocks) count += block.kind == kind && !block.freed;
  return count;
}

std::vector<Touch> touches_of(const PlainRegion* regions, int count) {
  std::vector<Touch> touches;
  for (int i = 0; i < count; ++i) touches.push_back(to_touch(regions[i]));
  return touches;
}

}  // namespace

extern "C" {

// --- schedules -----------------------------------------------------------------------------------------------------

void fake_set_mode(int mode, unsigned seed) {
  Call call(nullptr);
  set_mode(call, Mode(mode), seed);
}

void fake_set_visible(int devices) {
  Call call(nullptr);
  state().visible = devices;
}

void fake_set_gate_timeout(double milliseconds) {
  Call call(nullptr);
  state().gate_timeout_ms = milliseconds;
}

// Finishes all work; forgets findings, records, faults, lost devices and the past.
void fake_reset() {
  Call call(nullptr);
  State& st = state();
  drain(call);
  forget_freed(call);
  forget_past(call);
  st.reports.clear();
  st.records = Records();
  st.faults = Faults();
  st.pinned_peak = st.pinned_used;
  for (Device& device : st.devices) {
    device.lost = cudaSuccess;
    device.limit = kDeviceMemory;
    device.peak = device.used;
  }
}

// --- what happened -------------------------------------------------------------------------------------------------

const char* fake_take_reports() {
  Call call(nullptr);
  Joined reports("[]");
  for (const Report& report : state().reports) reports.item(report_text(report));
  state().reports.clear();
  return keep(reports.text());
}

const char* fake_counters() {
  Call call(nullptr);
  const Records& records = state().records;
  Joined joined("{}");
  joined.member("calls", object(records.calls)).member("blocking", object(records.blocking));
  joined.member("implicit", object(records.implicit)).member("launches", object(records.launches));
  joined.member("bytes", bytes_text(records)).member("filled", long(records.filled)).member("devices", devices_text());
  joined.member("pinned_used", long(state().pinned_used)).member("pinned_peak", long(state().pinned_peak));
  joined.member("device_blocks", blocks_of(MemoryKind::device)).member("pinned_blocks", blocks_of(MemoryKind::pinned));
  joined.member("streams", user_streams()).member("events", long(state().events.size()));
  joined.member("threads", acting_hosts());
  return keep(joined.member("blocking_calls", blocking_text(records)).text());
}

void fake_reset_counters() {
  Call call(nullptr);
  State& st = state();
  st.records = Records();
  st.pinned_peak = st.pinned_used;
  for (Device& device : st.devices) device.peak = device.used;
}

// Copies `most` records at most, the oldest first; returns how many there are.
long fake_copies(CopyRecord* records, long most) {
  Call call(nullptr);
  const auto& copies = state().records.copies;
  for (long i = 0; i < most && i < long(copies.size()); ++i) records[i] = copies[size_t(i)];
  return long(copies.size());
}

// --- what the checker cannot see itself ----------------------------------------------------------------------------

void fake_host_access(uintptr_t address, size_t size, int write) {
  if (forked()) return;
  Place place = here();
  Call call(nullptr);
  std::string actor = "host thread " + std::to_string(call.host().number);
  auto source = std::make_shared<Source>(Source{"host access", actor, place});
  Touch touch{Region(reinterpret_cast<void*>(address), size), write != 0};
  check_access(call, touch, call.host().actor, call.host().clock, source);
  call.host().clock.advance(call.host().actor);
}

void fake_declare(const PlainRegion* regions, int count) { declare_touches(touches_of(regions, count)); }

void fake_set_describer(const char* kernel, Describe describe) {
  Call call(nullptr);
  set_describer(call, kernel, describe);
}

void fake_add_piece(uintptr_t address, size_t size) {
  Call call(nullptr);
  add_piece(call, reinterpret_cast<void*>(address), size);
}

void fake_free_piece(uintptr_t address) {
  Call call(nullptr);
  free_piece(call, reinterpret_cast<void*>(address));
}

void fake_forget_pieces() {
  Call call(nullptr);
  state().pieces.clear();
}

void fake_name_stream(uintptr_t handle, const char* name) {
  Call call(nullptr);
  if (Stream* stream = call.stream(reinterpret_cast<cudaStream_t>(handle))) stream->name = name;
}

// A host thread hands on what it knows: what it did so far happens before what the one does that takes the token.
// `anew`: what was handed over with this token before is forgotten.
void fake_release(uintptr_t token, int anew) {
  if (forked()) return;
  if (anew && !this_host_acts()) {
    Lock lock(state().mutex);
    state().handovers.erase(token);
    return;
  }
  Call call(nullptr);
  Clock& handed = state().handovers[token];
  if (anew) handed = Clock();
  handed.join(call.host().clock);
  call.host().clock.advance(call.host().actor);
}

// The same for a thread that has made no call yet, and may never make one.
void fake_thread_born(uintptr_t token) { born_with(token); }

void fake_acquire(uintptr_t token, int forget) {
  if (forked()) return;
  Call call(nullptr);
  auto found = state().handovers.find(token);
  if (found == state().handovers.end()) return;
  call.host().clock.join(found->second);
  if (forget) state().handovers.erase(found);
}

// Runs Python code in stream order: `function(id)`.
int fake_host_call(uintptr_t handle, const char* name, void (*function)(long), long id, const PlainRegion* regions,
                   int count) {
  if (forked()) return cudaErrorInitializationError;
  Call call("host call");
  Stream* stream = call.stream(reinterpret_cast<cudaStream_t>(handle));
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (cudaError_t lost = call.lost(stream->device)) return lost;
  Work work{name, [=] { function(id); }, touches_of(regions, count)};
  work.kind = WorkKind::python;
  work.cost_ns = state().time.costs.kernel_ns;
  enqueue(call, *stream, std::move(work));
  return cudaSuccess;
}

// The checker's arithmetic, for its own tests.
int fake_regions_meet(const PlainRegion* a, const PlainRegion* b) {
  return to_touch(*a).region.meets(to_touch(*b).region);
}
int fake_region_covers(const PlainRegion* outer, const PlainRegion* inner) {
  return to_touch(*outer).region.covers(to_touch(*inner).region);
}

void fake_report(const char* kind, const char* text) {
  Call call(nullptr);
  report(call, kind, text);
}

// --- places --------------------------------------------------------------------------------------------------------

void fake_set_folders(const char* const* hidden, int hidden_count, const char* const* library, int library_count) {
  set_folders({hidden, hidden + hidden_count}, {library, library + library_count});
}

void fake_take_places(int wanted) { take_places(wanted != 0); }

// --- kernels -------------------------------------------------------------------------------------------------------

int fake_find_sanitizer() { return find_sanitizer(); }

void fake_set_loading_module(int64_t module) { set_loading_module(module); }

void fake_register_kernel(int64_t module, const char* name, shim::Run run, int count, const shim::Param* params,
                          const char* constness) {
  Call call(nullptr);
  HostKernel& kernel = host_kernel(call, module, name);
  kernel.run = run;
  kernel.params.assign(params, params + count);
  kernel.constness = constness;
}

void fake_register_failure(int64_t module, const char* name, const char* reason) {
  Call call(nullptr);
  host_kernel(call, module, name).reason = reason;
}

}  // extern "C"
