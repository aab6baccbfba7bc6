#include "state.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace fakecuda {

thread_local int current_device = 0;

namespace {

constexpr int kMostDevices = 64;
constexpr size_t kMostReports = 1000;

pid_t home_process = 0;

int wanted_devices() {
  const char* text = getenv("FAKECUDA_DEVICES");
  int count = text ? atoi(text) : 8;
  return count < 1 ? 1 : count > kMostDevices ? kMostDevices : count;
}

State* make_state() {
  auto* made = new State;
  home_process = getpid();
  made->devices.resize(size_t(wanted_devices()));
  made->visible = int(made->devices.size());
  for (int id = 0; id < made->visible; ++id) {
    auto stream = std::make_unique<Stream>();
    stream->handle = uintptr_t(0x100 + id);
    stream->actor = made->actors++;
    stream->device = id;
    made->devices[size_t(id)].default_stream = stream.get();
    made->streams[stream->handle] = std::move(stream);
  }
  return made;
}

thread_local uintptr_t birth_token = 0;

// Leaves the list of host threads when its thread ends.
struct HostOwner {
  Host* host = nullptr;
  ~HostOwner() {
    if (!host || forked()) return;
    Lock lock(state().mutex);
    for (auto& [device, stream] : host->own_streams) stream->destroyed = true;
    state().hosts.erase(host);
    delete host;
  }
};

thread_local HostOwner owner;

// What a thread knows when it begins to act: what its starter knew, or, if nobody has told, what all others know.
Clock first_clock() {
  auto handed = state().handovers.find(birth_token);
  if (birth_token && handed != state().handovers.end()) return handed->second;
  Clock clock;
  bool first = true;
  for (Host* other : state().hosts) {
    if (!other->acts) continue;
    if (first) clock = other->clock;
    else clock.meet(other->clock);
    first = false;
  }
  return clock;
}

bool same_sides(const Report& a, const Report& b) {
  for (size_t i = 0; i < a.sides.size(); ++i) {
    const Source &x = *a.sides[i].second, &y = *b.sides[i].second;
    if (x.what != y.what || x.actor != y.actor || x.place.user != y.place.user) return false;
  }
  return true;
}

}  // namespace

State& state() {
  // Never destroyed: worker threads and CuPy's destructors still use it while the process exits.
  static State* instance = make_state();
  return *instance;
}

bool forked() {
  state();
  return getpid() != home_process;
}

double now_ms() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

int new_actor() { return state().actors++; }

bool valid_device(int device) { return device >= 0 && device < state().visible; }

Host& this_host(Lock&) {
  if (!owner.host) {
    owner.host = new Host{state().threads++};
    state().hosts.insert(owner.host);
  }
  return *owner.host;
}

void act(Lock&, Host& host) {
  if (host.acts) return;
  host.clock = first_clock();
  host.actor = new_actor();
  host.clock.advance(host.actor);
  host.acts = true;
}

bool this_host_acts() { return owner.host && owner.host->acts; }

void born_with(uintptr_t token) { birth_token = token; }

void report(Lock&, const std::string& kind, const std::string& text,
            std::vector<std::pair<std::string, SourcePtr>> sides) {
  State& st = state();
  Report made{kind, text, std::move(sides)};
  if (getenv("FAKECUDA_VERBOSE")) fprintf(stderr, "[fakecuda] %s: %s\n", kind.c_str(), text.c_str());
  for (Report& old : st.reports) {
    bool same = old.kind == kind && old.sides.size() == made.sides.size() && same_sides(old, made);
    if (same && (!made.sides.empty() || old.text == text)) {
      ++old.count;
      return;
    }
  }
  if (st.reports.size() < kMostReports) st.reports.push_back(std::move(made));
}

}  // namespace fakecuda
