// The runtime API: copies and fills.
#include <cstring>

#include "copies.h"
#include "memory.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

cudaError_t copy_peer(Call& call, Copy copy, int to_device, int from_device, cudaStream_t handle) {
  if (copy.bytes() == 0) return cudaSuccess;
  bool known = kind_of(call, copy.to) == MemoryKind::device && kind_of(call, copy.from) == MemoryKind::device;
  if (!known || device_of(call, copy.to) != to_device || device_of(call, copy.from) != from_device) {
    const char* text = "the memory is not on the devices that the call names";
    report(call, "wrong device", text, {{"copy", call.source(call.name())}});
    return call.end(cudaErrorInvalidValue);
  }
  return enqueue_copy(call, handle, copy, cudaMemcpyDefault, false);
}

cudaError_t copy_rows(Call& call, Copy copy, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  if (copy.rows && (copy.to_pitch < copy.width || copy.from_pitch < copy.width)) {
    return call.end(cudaErrorInvalidPitchValue);
  }
  return enqueue_copy(call, handle, copy, kind, wait);
}

cudaError_t copy_slices(Call& call, const cudaMemcpy3DParms* parms, cudaStream_t handle, bool wait) {
  if (parms->srcArray || parms->dstArray) return call.end(cudaErrorNotSupported);
  auto place = [](const cudaPitchedPtr& ptr, const cudaPos& pos) {
    return static_cast<char*>(ptr.ptr) + pos.x + ptr.pitch * (pos.y + ptr.ysize * pos.z);
  };
  const cudaPitchedPtr &to = parms->dstPtr, &from = parms->srcPtr;
  const cudaExtent& extent = parms->extent;
  Copy copy{place(to, parms->dstPos), place(from, parms->srcPos), extent.width, extent.height, extent.depth,
            to.pitch, from.pitch, to.pitch * to.ysize, from.pitch * from.ysize};
  return copy_rows(call, copy, parms->kind, handle, wait);
}

// A copy within device memory returns at once, even where its call has no stream.
bool must_wait(Call& call, const void* to, const void* from) {
  return kind_of(call, to) != MemoryKind::device || kind_of(call, from) != MemoryKind::device;
}

cudaError_t fill(Call& call, void* to, int value, size_t size, cudaStream_t handle) {
  if (!size) return cudaSuccess;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  if (cudaError_t lost = call.lost(stream->device)) return call.end(lost);
  if (kind_of(call, to) == MemoryKind::pageable) return call.end(cudaErrorInvalidValue);
  state().records.filled += int64_t(size);
  enqueue(call, *stream, {call.name(), [=] { memset(to, value, size); }, {{Region(to, size), true}}});
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return enqueue_copy(call, handle, {to, from, size}, kind, false);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  FAKECUDA_ENTER_DEVICE;
  return enqueue_copy(call, nullptr, {to, from, size}, kind, must_wait(call, to, from));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t size,
                                cudaStream_t handle) {
  FAKECUDA_ENTER;
  return copy_peer(call, {to, from, size}, to_device, from_device, handle);
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t size) {
  FAKECUDA_ENTER_DEVICE;
  return copy_peer(call, {to, from, size}, to_device, from_device, nullptr);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return copy_rows(call, {to, from, width, height, 1, to_pitch, from_pitch}, kind, handle, false);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  FAKECUDA_ENTER_DEVICE;
  Copy copy{to, from, width, height, 1, to_pitch, from_pitch};
  return copy_rows(call, copy, kind, nullptr, must_wait(call, to, from));
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* parms, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return copy_slices(call, parms, handle, false);
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* parms) {
  FAKECUDA_ENTER_DEVICE;
  return copy_slices(call, parms, nullptr, must_wait(call, parms->dstPtr.ptr, parms->srcPtr.ptr));
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t handle) {
  FAKECUDA_ENTER;
  return fill(call, to, value, size, handle);
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  FAKECUDA_ENTER_DEVICE;
  return fill(call, to, value, size, nullptr);
}

}  // extern "C"
