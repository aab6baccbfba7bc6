// The driver API that CuPy finds by name: contexts, modules, launches.
#include "kernels.h"
#include "scheduler.h"

using namespace fakecuda;

namespace {

struct Module {
  int64_t id;
  int device;
};

thread_local int64_t loading_module = 0;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(uintptr_t(device) + 1); }

}  // namespace

namespace fakecuda {

void set_loading_module(int64_t module) { loading_module = module; }

}  // namespace fakecuda

extern "C" {

// --- errors --------------------------------------------------------------------------------------------------------

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == kNoHostKernel ? "CUDA_ERROR_NOT_FOUND" : cudaGetErrorName(cudaError_t(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == kNoHostKernel ? "not found (or not compiled for the CPU: see the reports of the fake)"
                                 : cudaGetErrorString(cudaError_t(error));
  return CUDA_SUCCESS;
}

// --- contexts: one a device ----------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = context_of(current_device);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) current_device = int(reinterpret_cast<uintptr_t>(context)) - 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKECUDA_ENTER_DRIVER;
  Stream* stream = call.stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *context = context_of(stream->device);
  return CUDA_SUCCESS;
}

// --- modules and functions -----------------------------------------------------------------------------------------

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  FAKECUDA_ENTER_DRIVER;
  call.may_block();
  if (cudaError_t lost = call.lost(current_device)) return CUresult(lost);
  *module = reinterpret_cast<CUmodule>(new Module{std::exchange(loading_module, 0), current_device});
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }

// Functions hold what they need of a module, and CuPy keeps modules as long as it runs.
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  FAKECUDA_ENTER_DRIVER;
  auto module = reinterpret_cast<Module*>(handle);
  HostKernel& kernel = host_kernel(call, module->id, name);  // an unknown one fails at its launch
  *function = reinterpret_cast<CUfunction>(new Function{&kernel, module->device});
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr*, size_t*, CUmodule, const char*) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  auto function = reinterpret_cast<Function*>(handle);
  switch (int(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->most_shared; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value > (227 << 10)) return CUDA_ERROR_INVALID_VALUE;
  reinterpret_cast<Function*>(handle)->most_shared = value;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) {
  *blocks = threads > 0 ? 2048 / threads : 0;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** args, void**) {
  if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
  const auto& function = *reinterpret_cast<Function*>(handle);
  LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
  ask_describer(function, args, shape);
  Call call(__func__);
  return launch(call, function, shape, stream, args);
}

}  // extern "C"
