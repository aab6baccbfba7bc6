// The runtime API: memory.
#include <cstring>

#include "call.h"
#include "checker.h"
#include "memory.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

cudaError_t allocate_into(Call& call, void** ptr, size_t size, int device, MemoryKind kind,
                          bool stream_ordered = false) {
  *ptr = nullptr;
  if (size == 0) return cudaSuccess;
  Block* block = allocate(call, size, device, kind, stream_ordered);
  if (!block) return call.end(cudaErrorMemoryAllocation);
  *ptr = block->base;
  return cudaSuccess;
}

cudaError_t allocate_in_order(Call& call, void** ptr, size_t size, cudaStream_t handle) {
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  if (cudaError_t lost = call.lost(stream->device)) return call.end(lost);
  cudaError_t error = allocate_into(call, ptr, size, stream->device, MemoryKind::device, true);
  if (error != cudaSuccess || !*ptr) return error;
  enqueue(call, *stream, {call.name(), nullptr, {{Region(*ptr, size), true}}});
  return cudaSuccess;
}

constexpr uintptr_t kFirstPool = 0x1000;

cudaMemPool_t pool_of(int device) { return reinterpret_cast<cudaMemPool_t>(kFirstPool + uintptr_t(device)); }
int device_of_pool(cudaMemPool_t pool) { return int(reinterpret_cast<uintptr_t>(pool) - kFirstPool); }

// The attribute of a pool, or null for those of another kind, which are accepted and do nothing.
uint64_t* attribute_of(Pool& pool, cudaMemPoolAttr attribute) {
  static_assert(sizeof(size_t) == sizeof(uint64_t));
  auto word = [](size_t& value) { return reinterpret_cast<uint64_t*>(&value); };
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: return &pool.release_threshold;
    case cudaMemPoolAttrReservedMemCurrent: return word(pool.reserved);
    case cudaMemPoolAttrReservedMemHigh: return word(pool.reserved_high);
    case cudaMemPoolAttrUsedMemCurrent: return word(pool.used);
    case cudaMemPoolAttrUsedMemHigh: return word(pool.used_high);
    default: return nullptr;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** ptr, size_t size) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  return allocate_into(call, ptr, size, current_device, MemoryKind::device);
}

cudaError_t cudaHostAlloc(void** ptr, size_t size, unsigned) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  return allocate_into(call, ptr, size, -1, MemoryKind::pinned);
}

// Waits for the device, as CUDA does, but nothing is taken to be ordered by that: programs may not rely on it.
cudaError_t cudaFree(void* ptr) {
  FAKECUDA_ENTER_DEVICE;
  if (!ptr) return cudaSuccess;
  call.may_block();
  Block* block = find_block(call, ptr);
  if (block && block->kind != MemoryKind::device) block = nullptr;
  if (block && !block->freed) host_wait_device(call, block->device, false);
  if (!block || !mark_freed(call, ptr, call.name(), call.place())) return call.end(cudaErrorInvalidValue);
  unmap(call, ptr);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* ptr) {
  FAKECUDA_ENTER_DEVICE;
  if (!ptr) return cudaSuccess;
  call.may_block();
  for (int device = 0; device < int(state().devices.size()); ++device) host_wait_device(call, device, false);
  if (kind_of(call, ptr) == MemoryKind::device) return call.end(cudaErrorInvalidValue);
  if (!mark_freed(call, ptr, call.name(), call.place())) return call.end(cudaErrorInvalidValue);
  unmap(call, ptr);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** ptr, size_t size, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return allocate_in_order(call, ptr, size, handle);
}

cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t size, cudaMemPool_t, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return allocate_in_order(call, ptr, size, handle);
}

cudaError_t cudaFreeAsync(void* ptr, cudaStream_t handle) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  Block* block = find_block(call, ptr);
  if (!block || block->base != ptr || block->freed) {
    mark_freed(call, ptr, call.name(), call.place());  // reports
    return call.end(cudaErrorInvalidValue);
  }
  auto run = [ptr] {
    Lock lock(state().mutex);
    unmap(lock, ptr);
  };
  enqueue(call, *stream, {call.name(), run, {{Region(ptr, block->size), true}}});
  mark_freed(call, ptr, call.name(), call.place());
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  if (!size) return call.end(cudaErrorInvalidValue);
  if (in_arena(ptr) || !register_host(call, ptr, size)) return call.end(cudaErrorHostMemoryAlreadyRegistered);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* ptr) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  Block* block = find_block(call, ptr);
  if (!block || block->kind != MemoryKind::registered || block->base != ptr) {
    return call.end(cudaErrorHostMemoryNotRegistered);
  }
  // Whoever still copies from or to it would find it pageable, or gone.
  Touch all{Region(ptr, block->size), true};
  check_access(call, all, call.host().actor, call.host().clock, call.source(call.name()));
  for (int device = 0; device < int(state().devices.size()); ++device) host_wait_device(call, device, false);
  forget(call, ptr);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  FAKECUDA_ENTER_DEVICE;
  const Device& device = state().devices[size_t(current_device)];
  *total = device.limit;
  *free = device.limit > device.used ? device.limit - device.used : 0;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  FAKECUDA_ENTER;
  memset(attributes, 0, sizeof *attributes);
  Block* block = find_block(call, ptr);
  void* address = const_cast<void*>(ptr);
  if (!block || block->freed) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = address;
  } else if (block->kind == MemoryKind::device) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = block->device;
    attributes->devicePointer = address;
  } else {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = address;
    attributes->hostPointer = address;
  }
  return cudaSuccess;
}

// --- memory pools: each device has one -----------------------------------------------------------------------------

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  *pool = pool_of(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return valid_device(device) && pool == pool_of(device) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  FAKECUDA_ENTER;
  if (!valid_device(device_of_pool(pool))) return call.end(cudaErrorInvalidValue);
  call.may_block();
  trim_pool(call, device_of_pool(pool), keep);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  FAKECUDA_ENTER;
  if (!valid_device(device_of_pool(pool))) return call.end(cudaErrorInvalidValue);
  uint64_t* word = attribute_of(state().devices[size_t(device_of_pool(pool))].pool, attribute);
  if (word) memcpy(value, word, sizeof *word);
  else memset(value, 0, sizeof(int));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  FAKECUDA_ENTER;
  if (!valid_device(device_of_pool(pool))) return call.end(cudaErrorInvalidValue);
  uint64_t* word = attribute_of(state().devices[size_t(device_of_pool(pool))].pool, attribute);
  if (word) memcpy(word, value, sizeof *word);
  return cudaSuccess;
}

}  // extern "C"
