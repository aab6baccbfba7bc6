// The runtime API: streams, events, host functions.
#include "call.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

cudaError_t create_stream(Call& call, cudaStream_t* handle, unsigned flags, int priority) {
  if (flags > cudaStreamNonBlocking) return call.end(cudaErrorInvalidValue);
  *handle = reinterpret_cast<cudaStream_t>(make_stream(call, current_device, flags, priority)->handle);
  return cudaSuccess;
}

cudaError_t create_event(Call& call, cudaEvent_t* handle, unsigned flags) {
  static uintptr_t next = 0x10008;  // handles are not used again, so that a stale one is noticed
  state().events[next] = std::make_unique<Event>(Event{current_device, flags, nullptr});
  *handle = reinterpret_cast<cudaEvent_t>(next);
  next += 0x10;
  return call.end(cudaSuccess);
}

}  // namespace

extern "C" {

// --- streams -------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  FAKECUDA_ENTER_DEVICE;
  return create_stream(call, handle, flags, priority);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  FAKECUDA_ENTER_DEVICE;
  return create_stream(call, handle, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  FAKECUDA_ENTER_DEVICE;
  return create_stream(call, handle, flags, 0);
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  *flags = stream->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

// What was enqueued still completes.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream || stream == state().devices[size_t(stream->device)].default_stream) {
    return call.end(cudaErrorInvalidResourceHandle);
  }
  stream->destroyed = true;
  drop_if_finished(call, *stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  call.blocks();
  int device = stream->device;
  host_wait(call, stream->tail);
  return call.end(call.lost(device));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  int device = stream->device;
  bool done = host_query(call, stream->tail);
  if (cudaError_t lost = call.lost(device)) return call.end(lost);
  return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  Work work{call.name(), [=] { function(data); }};
  work.kind = WorkKind::python;
  enqueue(call, *stream, std::move(work));
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  FAKECUDA_ENTER;
  Stream* stream = call.stream(handle);
  if (!stream) return call.end(cudaErrorInvalidResourceHandle);
  Work work{call.name(), [=] { function(handle, cudaSuccess, data); }};
  work.kind = WorkKind::python;
  enqueue(call, *stream, std::move(work));
  return cudaSuccess;
}

// --- events --------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  FAKECUDA_ENTER_DEVICE;
  return create_event(call, handle, flags);
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  FAKECUDA_ENTER_DEVICE;
  return create_event(call, handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  FAKECUDA_ENTER;
  bool erased = call.event(handle) && state().events.erase(reinterpret_cast<uintptr_t>(handle)) > 0;
  return call.end(erased ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  FAKECUDA_ENTER;
  Event* event = call.event(handle);
  Stream* stream = call.stream(stream_handle);
  if (!event || !stream) return call.end(cudaErrorInvalidResourceHandle);
  int device = event->device;
  if (device != stream->device) {
    std::string text = "an event of device " + std::to_string(device) + " is recorded on " + label(*stream);
    report(call, "wrong device", text, {{"record", call.source(call.name())}});
    return call.end(cudaErrorInvalidResourceHandle);
  }
  Work work{call.name()};
  work.record = event;
  enqueue(call, *stream, std::move(work));
  return call.end(call.lost(device));
}

// Waits for the record made last *before this call*; a later record does not change that, and where there is none
// it waits for nothing.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  FAKECUDA_ENTER;
  Event* event = call.event(handle);
  Stream* stream = call.stream(stream_handle);
  if (!event || !stream) return call.end(cudaErrorInvalidResourceHandle);
  if (cudaError_t lost = call.lost(stream->device)) return call.end(lost);
  if (event->marker) enqueue(call, *stream, {call.name(), nullptr, {}, event->marker});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  FAKECUDA_ENTER;
  Event* event = call.event(handle);
  if (!event) return call.end(cudaErrorInvalidResourceHandle);
  int device = event->device;
  bool done = host_query(call, event->marker);
  if (cudaError_t lost = call.lost(device)) return call.end(lost);
  return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  FAKECUDA_ENTER;
  Event* event = call.event(handle);
  if (!event) return call.end(cudaErrorInvalidResourceHandle);
  call.blocks();
  int device = event->device;
  host_wait(call, event->marker);
  return call.end(call.lost(device));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  FAKECUDA_ENTER;
  Event *first = call.event(begin), *last = call.event(end);
  if (!first || !last || !first->marker || !last->marker) return call.end(cudaErrorInvalidResourceHandle);
  bool timed = !(first->flags & cudaEventDisableTiming) && !(last->flags & cudaEventDisableTiming);
  if (!timed || first->device != last->device) return call.end(cudaErrorInvalidResourceHandle);
  if (cudaError_t lost = call.lost(first->device)) return call.end(lost);
  for (Event* event : {first, last}) {
    if (!event->marker->done || event->marker->end_ns > state().time.host_ns) return cudaErrorNotReady;
  }
  *milliseconds = float(last->marker->time_ms - first->marker->time_ms);
  return cudaSuccess;
}

}  // extern "C"
