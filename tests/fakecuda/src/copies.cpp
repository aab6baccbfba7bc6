#include "copies.h"

#include <cstring>

#include "memory.h"
#include "scheduler.h"
#include "virtual_time.h"

namespace fakecuda {

namespace {

struct Sides {
  MemoryKind to_kind, from_kind;
  int to_device, from_device;  // -1: host

  bool from_pageable() const { return from_kind == MemoryKind::pageable; }
  bool to_pageable() const { return to_kind == MemoryKind::pageable; }
  bool between_devices() const { return to_device >= 0 && from_device >= 0 && to_device != from_device; }

  Direction direction() const {
    if (to_device < 0) return from_device < 0 ? Direction::within_host : Direction::to_host;
    if (from_device < 0) return Direction::to_device;
    return to_device == from_device ? Direction::within_device : Direction::between_devices;
  }
};

Sides sides_of(Lock& lock, const Copy& copy) {
  return {kind_of(lock, copy.to), kind_of(lock, copy.from), device_of(lock, copy.to), device_of(lock, copy.from)};
}

Region region_of(const void* ptr, const Copy& copy, size_t pitch, size_t slice) {
  int64_t shape[] = {int64_t(copy.slices), int64_t(copy.rows)};
  int64_t strides[] = {int64_t(slice), int64_t(pitch)};
  return Region::strided(ptr, copy.width, 2, shape, strides);
}

template <class Row>
void for_each_row(const Copy& copy, Row row) {
  for (size_t slice = 0; slice < copy.slices; ++slice) {
    for (size_t i = 0; i < copy.rows; ++i) {
      row(static_cast<char*>(copy.to) + slice * copy.to_slice + i * copy.to_pitch,
          static_cast<const char*>(copy.from) + slice * copy.from_slice + i * copy.from_pitch);
    }
  }
}

void move_bytes(const Copy& copy) {
  for_each_row(copy, [&](char* to, const char* from) { memmove(to, from, copy.width); });
}

void write_zeros(const Copy& copy) {
  for_each_row(copy, [&](char* to, const char*) { memset(to, 0, copy.width); });
}

// A copy of pageable bytes, taken at the call.
std::function<void()> from_snapshot(const Copy& copy) {
  auto bytes = std::make_shared<std::vector<char>>(copy.bytes());
  Copy take = copy, put = copy;
  take.to = bytes->data();
  put.from = bytes->data();
  take.to_pitch = put.from_pitch = copy.width;
  take.to_slice = put.from_slice = copy.width * copy.rows;
  move_bytes(take);
  return [bytes, put] { move_bytes(put); };
}

bool direction_fits(const Sides& sides, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToHost: return sides.to_device < 0 && sides.from_device < 0;
    case cudaMemcpyHostToDevice: return sides.from_device < 0 && (sides.to_device >= 0 || !sides.to_pageable());
    case cudaMemcpyDeviceToHost: return sides.to_device < 0 && (sides.from_device >= 0 || !sides.from_pageable());
    case cudaMemcpyDeviceToDevice: return !sides.to_pageable() && !sides.from_pageable();
    default: return true;
  }
}

void keep_record(Call& call, const Copy& copy, const Sides& sides, const Stream& stream) {
  CopyRecord record = {};
  record.direction = int32_t(sides.direction());
  record.pageable = sides.from_pageable() || sides.to_pageable();
  record.target = reinterpret_cast<uintptr_t>(copy.to);
  record.source = reinterpret_cast<uintptr_t>(copy.from);
  record.target_device = sides.to_device;
  record.source_device = sides.from_device;
  record.nbytes = int64_t(copy.bytes());
  record.width = int64_t(copy.width);
  record.rows = int64_t(copy.rows);
  record.slices = int64_t(copy.slices);
  record.target_pitch = int64_t(copy.to_pitch);
  record.source_pitch = int64_t(copy.from_pitch);
  bool is_default = &stream == state().devices[size_t(stream.device)].default_stream;
  record.stream = is_default ? 0 : stream.handle;
  record.stream_device = stream.device;
  record.host_thread = call.host().number;
  state().records.add(record);
}

// A copy between two devices in a default stream is ordered with the other device's default stream too.
Stream* other_default_stream(const Sides& sides, const Stream& stream) {
  auto& devices = state().devices;
  if (!sides.between_devices() || &stream != devices[size_t(stream.device)].default_stream) return nullptr;
  int other = sides.to_device != stream.device ? sides.to_device : sides.from_device;
  return devices[size_t(other)].default_stream;
}

Work copy_work(Call& call, const Copy& copy, const Sides& sides) {
  Work work{call.name()};
  work.cost_ns = copy_cost(copy.bytes());
  if (sides.from_pageable() && sides.to_device >= 0) {
    work.run = from_snapshot(copy);
  } else if (state().faults.corrupt.count({sides.from_device, sides.to_device})) {
    work.run = [copy] { write_zeros(copy); };
  } else {
    work.run = [copy] { move_bytes(copy); };
  }
  work.touches = {{region_of(copy.from, copy, copy.from_pitch, copy.from_slice), false},
                  {region_of(copy.to, copy, copy.to_pitch, copy.to_slice), true}};
  return work;
}

bool fits_memory(Call& call, const Touch& touch) {
  Block* block = find_block(call, touch.region.anchor());
  if (!block) return !in_arena(touch.region.anchor());
  auto base = reinterpret_cast<uintptr_t>(block->base);
  return !block->freed && touch.region.begin() >= base && touch.region.end() <= base + block->size;
}

cudaError_t first_lost(Call& call, const Stream& stream, const Sides& sides) {
  if (cudaError_t lost = call.lost(stream.device)) return lost;
  for (int device : {sides.to_device, sides.from_device}) {
    if (device < 0) continue;
    if (cudaError_t lost = call.lost(device)) return lost;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t enqueue_copy(Call& call, cudaStream_t handle, const Copy& copy, cudaMemcpyKind kind, bool wait) {
  if (copy.bytes() == 0) return cudaSuccess;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  Sides sides = sides_of(call, copy);
  if (!direction_fits(sides, kind)) {
    const char* text = "the pointers are not of the kind that the call says";
    report(call, "wrong direction", text, {{"copy", call.source(call.name())}});
    return call.end(cudaErrorInvalidMemcpyDirection);
  }
  if (cudaError_t lost = first_lost(call, *stream, sides)) return call.end(lost);

  bool waits = wait || sides.to_pageable();  // a copy to pageable memory returns only when it is done
  if (waits || sides.from_pageable()) call.blocks();
  keep_record(call, copy, sides, *stream);
  Work work = copy_work(call, copy, sides);
  bool fits = fits_memory(call, work.touches[0]) && fits_memory(call, work.touches[1]);

  int device = stream->device;
  Stream* other = other_default_stream(sides, *stream);
  if (other) work.after = enqueue(call, *other, {"order of default streams"});
  MarkerPtr end = enqueue(call, *stream, std::move(work));
  if (other) enqueue(call, *other, {"order of default streams", nullptr, {}, end});
  if (!fits) return call.end(cudaErrorInvalidValue);  // the checker has reported why
  if (waits) host_wait(call, end);
  return call.end(waits ? call.lost(device) : cudaSuccess);
}

}  // namespace fakecuda
