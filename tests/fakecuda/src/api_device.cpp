// The runtime API: errors, versions, devices, peer access.
#include <cstdio>
#include <cstring>

#include "call.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

// What the fake devices say they are: H100s.
constexpr int kCudaVersion = 12090;
constexpr int kMajor = 9, kMinor = 0;
constexpr int kProcessors = 132;
constexpr int kMaxThreads = 1024;
constexpr int kSharedMemory = 48 << 10, kSharedMemoryOptIn = 227 << 10;

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const ErrorText* find_error(cudaError_t error) {
  for (const ErrorText& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

}  // namespace

extern "C" {

// --- errors and versions -------------------------------------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* known = find_error(error);
  return known ? known->name : "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* known = find_error(error);
  return known ? known->text : "unknown error";
}

cudaError_t cudaGetLastError() { return take_last_error(); }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kCudaVersion;
  return cudaSuccess;
}

// --- devices -------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  FAKECUDA_ENTER;
  *count = state().visible;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (forked()) return cudaErrorInitializationError;
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  switch (int(attribute)) {
    case cudaDevAttrComputeCapabilityMajor: *value = kMajor; break;
    case cudaDevAttrComputeCapabilityMinor: *value = kMinor; break;
    case cudaDevAttrMultiProcessorCount: *value = kProcessors; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = kMaxThreads; break;
    case cudaDevAttrMaxBlockDimX: *value = kMaxThreads; break;
    case cudaDevAttrMaxBlockDimY: *value = kMaxThreads; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY: *value = 65535; break;
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedMemory; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedMemoryOptIn; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  FAKECUDA_ENTER;
  if (!valid_device(device)) return call.end(cudaErrorInvalidDevice);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "Fake GPU %d", device);
  memset(prop->uuid.bytes, 'f', sizeof prop->uuid.bytes);  // CuPy reads it up to the first zero
  prop->uuid.bytes[15] = char(device + 1);
  prop->major = kMajor;
  prop->minor = kMinor;
  prop->warpSize = 32;
  prop->multiProcessorCount = kProcessors;
  prop->maxThreadsPerBlock = kMaxThreads;
  prop->maxThreadsPerMultiProcessor = 2048;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = kMaxThreads;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 0x7fffffff;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->sharedMemPerBlock = kSharedMemory;
  prop->sharedMemPerBlockOptin = kSharedMemoryOptIn;
  prop->regsPerBlock = 65536;
  prop->totalGlobalMem = state().devices[size_t(device)].limit;
  prop->l2CacheSize = 50 << 20;
  prop->memoryBusWidth = 5120;
  prop->unifiedAddressing = 1;
  prop->canMapHostMemory = 1;
  prop->concurrentKernels = 1;
  prop->streamPrioritiesSupported = 1;
  prop->asyncEngineCount = 3;
  prop->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  snprintf(text, size_t(size), "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  unsigned bus;
  if (sscanf(text, "%*x:%x", &bus) != 1 || !valid_device(int(bus) - 1)) return cudaErrorInvalidValue;
  *device = int(bus) - 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  FAKECUDA_ENTER_DEVICE;
  call.blocks();
  int device = current_device;
  host_wait_device(call, device, true);
  return call.end(call.lost(device));
}

// --- peer access ---------------------------------------------------------------------------------------------------

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  FAKECUDA_ENTER;
  if (!valid_device(device) || !valid_device(peer)) return call.end(cudaErrorInvalidDevice);
  *can = device != peer && !state().faults.no_peer.count({device, peer});
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  if (!valid_device(peer) || peer == current_device) return call.end(cudaErrorInvalidDevice);
  if (flags != 0) return call.end(cudaErrorInvalidValue);
  if (state().faults.no_peer.count({current_device, peer})) return call.end(cudaErrorPeerAccessUnsupported);
  bool added = state().peers.insert({current_device, peer}).second;
  return call.end(added ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  FAKECUDA_ENTER_DEVICE;
  call.may_block();
  bool removed = state().peers.erase({current_device, peer}) > 0;
  return call.end(removed ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}

}  // extern "C"
