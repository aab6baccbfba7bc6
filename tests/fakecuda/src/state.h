// The state of the fake machine. One mutex guards all of it; a function that takes a Lock& wants it held.
// It is released while an operation runs (a copy, a kernel, a Python callback).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "faults.h"
#include "places.h"
#include "records.h"
#include "region.h"

namespace fakecuda {

using Lock = std::unique_lock<std::mutex>;

enum class Mode { eager, lazy, random, threads };
enum class MemoryKind { pageable, pinned, registered, device };

struct Stream;

// The end of one enqueued operation. Events, waits and the tails of streams point at markers.
struct Marker {
  Stream* stream = nullptr;  // valid until the marker is done
  bool done = false;
  double time_ms = 0;  // by the clock of its device
  double end_ns = 0;   // in virtual time
  Clock clock;  // everything that happens before this point
};
using MarkerPtr = std::shared_ptr<Marker>;

// Who made an access, for reports: "memcpyAsync" on "stream 7 of device 0", from a line of Python.
struct Source {
  std::string what;
  std::string actor;
  Place place;
};
using SourcePtr = std::shared_ptr<const Source>;

struct Access {
  Region region;
  bool write;
  int actor;
  Tick tick;
  SourcePtr source;
};

// What an operation reads or writes.
struct Touch {
  Region region;
  bool write;
};

// A kernel that polls a flag waits here until the flag is set, so that no CPU thread spins for it.
struct Gate {
  const volatile int32_t* flag = nullptr;
  double deadline_ms = 0;
};

// Memory faults of Python code are nobody's to survive.
enum class WorkKind { copy, kernel, python };

struct Op {
  std::function<void()> run;  // empty: only an order
  WorkKind kind = WorkKind::copy;
  std::vector<Touch> fence;  // with the sanitizer: what a kernel may touch
  std::string what;
  std::vector<MarkerPtr> waits;
  Gate gate;
  cudaError_t fault = cudaSuccess;  // the device is lost with this error when the operation runs
  double cost_ns = 0, enqueued_ns = 0, ready_ns = 0;  // virtual time: how long, and not before when
  MarkerPtr end;
};

struct Stream {
  uintptr_t handle;
  int actor;
  int device;
  unsigned flags = 0;
  int priority = 0;
  std::string name;
  bool busy = false;
  bool destroyed = false;  // its work still completes
  std::deque<Op> queue;
  MarkerPtr tail;  // the last operation ever enqueued
  double free_ns = 0;  // in virtual time: when what has run so far ends
  Clock clock;

  bool blocking() const { return !(flags & cudaStreamNonBlocking); }
};

struct Event {
  int device;
  unsigned flags;
  MarkerPtr marker;  // null until the first record
};

// A host thread. It acts from its first call on that is ordered with others: destroying what it happened to collect as
// garbage is none.
struct Host {
  int number;
  bool acts = false;
  int actor = -1;
  Clock clock = {};
  std::map<int, Stream*> own_streams = {};  // per-thread default streams, by device
};

// One cudaMalloc, cudaHostAlloc or registered host range.
struct Block {
  char* base;
  size_t size;
  int device;  // -1: host memory
  MemoryKind kind;
  bool stream_ordered = false;  // from cudaMallocAsync: enabling peer access does not reach it
  bool freed = false;
  std::vector<Access> history;
};

// A part of a block that an allocator above CUDA's has handed out or taken back.
struct Piece {
  size_t size;
  bool live;
};

// The stream-ordered allocator of a device. What it has reserved is taken from the device, used or not.
struct Pool {
  size_t used = 0, used_high = 0;
  size_t reserved = 0, reserved_high = 0;
  uint64_t release_threshold = 0;
};

constexpr size_t kDeviceMemory = size_t(16) << 30;

struct Device {
  Stream* default_stream = nullptr;
  Clock gone, gone_blocking;       // what its destroyed streams have done, and those of them that were blocking
  cudaError_t lost = cudaSuccess;  // a sticky error: all of its work fails from then on
  size_t limit = kDeviceMemory, used = 0, peak = 0;
  double ticks = 1;  // of its clock in a unit of the host's
  Pool pool;
};

// How long work takes in virtual time.
struct Costs {
  double kernel_ns = 0, copy_ns = 0, byte_ns = 0;  // a launch; a copy, and each byte of it
  double call_ns = 0;                              // a call of the API, on the host
};

struct VirtualTime {
  bool on = false;
  Costs costs;
  double host_ns = 1e9;  // goes on where the last virtual time ended; no time of a program is zero
  double last_ns = 0;    // when the last work ends that has run
  long calls = 0;
  const Marker* asked = nullptr;  // what was queried last, by which call
  long asked_at = 0;
};

struct Report {
  std::string kind;
  std::string text;
  std::vector<std::pair<std::string, SourcePtr>> sides;  // "write", by whom
  long count = 1;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;

  std::vector<Device> devices;
  int visible = 0;  // how many of them cudaGetDeviceCount tells of
  Mode mode = Mode::eager;
  std::mt19937 rng{0};
  double gate_timeout_ms = 10000;

  std::map<uintptr_t, std::unique_ptr<Stream>> streams;
  std::map<uintptr_t, std::unique_ptr<Event>> events;
  std::map<uintptr_t, Stream*> active;  // those with a queue
  std::set<Host*> hosts;
  int actors = 0;
  int threads = 0;
  std::map<uintptr_t, Clock> handovers;  // by token: what was known when it was released

  std::map<uintptr_t, Block> blocks;
  std::map<uintptr_t, Piece> pieces;
  std::set<std::pair<int, int>> peers;  // (device, peer) with access enabled
  size_t pinned_used = 0, pinned_peak = 0;
  uint32_t launches = 0;  // the seed of the next kernel's order of threads
  int polls = 0;

  VirtualTime time;
  Faults faults;
  Records records;
  std::vector<Report> reports;
};

State& state();
extern thread_local int current_device;

// Whether this process is a fork of the one that has the devices: nothing works there, as with CUDA.
bool forked();
double now_ms();
int new_actor();
Host& this_host(Lock&);
// Makes it act, if it does not yet.
void act(Lock&, Host&);
bool this_host_acts();
// The calling thread, once it acts, knows what was handed over with this token.
void born_with(uintptr_t token);
bool valid_device(int device);

// Records a finding. The same finding again only adds to its count.
void report(Lock&, const std::string& kind, const std::string& text,
            std::vector<std::pair<std::string, SourcePtr>> sides = {});

}  // namespace fakecuda
