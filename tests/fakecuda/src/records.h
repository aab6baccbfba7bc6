// Records: how often each function was called, what blocked the caller, and every copy.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "places.h"

namespace fakecuda {

enum class Direction : int32_t { to_device, to_host, within_device, between_devices, within_host };

// One copy call. Plain data, since Python reads it as an array of structs (CopyRecord in counts.py).
struct CopyRecord {
  int64_t number;
  int32_t direction;
  int32_t pageable;  // one side is pageable host memory
  uint64_t target, source;
  int32_t target_device, source_device;  // -1: host
  int64_t nbytes;
  int64_t width, rows, slices;  // bytes a row, rows a slice
  int64_t target_pitch, source_pitch;
  uint64_t stream;  // 0: a default stream
  int32_t stream_device;
  int32_t host_thread;
};

struct BlockingCall {
  std::string name;
  Place place;
};

struct Records {
  static constexpr size_t kMost = 1 << 20;  // copies and blocking calls kept

  std::map<std::string, long> calls, blocking, implicit, launches;
  std::map<std::pair<int, int>, int64_t> bytes;  // (from, to) device, -1: host
  int64_t filled = 0;
  std::deque<CopyRecord> copies;
  std::deque<BlockingCall> blocking_calls;
  int64_t copies_made = 0;

  void add(CopyRecord record);
  void add_blocking(const std::string& name, const Place& place);
};

}  // namespace fakecuda
