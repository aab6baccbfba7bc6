// Launches: what they touch, and how they run.
#include <cstring>
#include <optional>

#include "kernels.h"
#include "memory.h"
#include "scheduler.h"
#include "virtual_time.h"

namespace fakecuda {

namespace {

thread_local std::optional<std::vector<Touch>> declared;  // for the next launch

std::map<std::string, Describe>& describers() {
  static auto* map = new std::map<std::string, Describe>;
  return *map;
}

// --- what a launch touches -----------------------------------------------------------------------------------------

const void* pointer_at(const void* arg) {
  const void* ptr;
  memcpy(&ptr, arg, sizeof ptr);
  return ptr;
}

Touch array_touch(const shim::Param& param, const void* arg, bool write) {
  auto words = static_cast<const int64_t*>(arg);  // address, size, shape, strides
  if (words[1] == 0) return {Region(), write};
  auto ptr = reinterpret_cast<const void*>(words[0]);
  return {Region::strided(ptr, size_t(param.itemsize), param.ndim, words + 2, words + 2 + param.ndim), write};
}

void add_pointer(Call& call, const HostKernel& kernel, const void* ptr, bool write, std::vector<Touch>& touches) {
  if (!ptr) return;
  if (!find_block(call, ptr) && !in_arena(ptr)) {
    report(call, "not device memory", kernel.name + " gets a pointer to pageable host memory",
           {{"launch", call.source(kernel.name)}});
    return;
  }
  touches.push_back({Region(ptr, std::max<size_t>(extent_from(call, ptr), 1)), write});
}

// Judged by the parameters: arrays of CuPy exactly, pointers up to the end of their piece or block.
std::vector<Touch> guess_touches(Call& call, const HostKernel& kernel, void** args) {
  std::vector<Touch> touches;
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    const shim::Param& param = kernel.params[i];
    bool is_const = i < kernel.constness.size() && kernel.constness[i] == 'c';
    if (param.kind == 'a') touches.push_back(array_touch(param, args[i], !is_const));
    if (param.kind == 'r' || param.kind == 'b') {
      add_pointer(call, kernel, pointer_at(args[i]), param.kind == 'b', touches);
    }
    if (param.kind != 's') continue;
    for (int offset = 0; offset + 8 <= param.size; offset += 8) {  // pointers that a struct may hide count as read
      const void* ptr = pointer_at(static_cast<char*>(args[i]) + offset);
      if (find_block(call, ptr)) touches.push_back({Region(ptr, extent_from(call, ptr)), false});
    }
  }
  return touches;
}

void check_peers(Call& call, const HostKernel& kernel, int device, const std::vector<Touch>& touches) {
  for (const Touch& touch : touches) {
    Block* block = find_block(call, touch.region.anchor());
    if (!block || block->kind != MemoryKind::device || block->device == device) continue;
    if (!block->stream_ordered && state().peers.count({device, block->device})) continue;
    std::string text = kernel.name + " on device " + std::to_string(device) + " reaches memory of device " +
                       std::to_string(block->device) + " without access to it";
    report(call, "peer access not enabled", text, {{"launch", call.source(kernel.name)}});
  }
}

// The flag of a kernel that waits for the host: its first pointer.
const volatile int32_t* flag_of(const HostKernel& kernel, void** args) {
  if (kernel.name.find("latch") == std::string::npos) return nullptr;
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    char kind = kernel.params[i].kind;
    if (kind == 'v' || kind == 'r' || kind == 'b') return static_cast<const volatile int32_t*>(pointer_at(args[i]));
  }
  return nullptr;
}

double cost_of(const HostKernel& kernel, void** args) {
  std::vector<int> sizes;
  for (const shim::Param& param : kernel.params) sizes.push_back(param.size);
  return kernel_cost(kernel.name, sizes, args);
}

// --- launching -----------------------------------------------------------------------------------------------------

// Runs the kernel with its own copy of the arguments, taken at the call as CUDA does.
std::function<void()> kernel_run(Call& call, const HostKernel& kernel, void** args, const LaunchShape& shape) {
  std::vector<std::vector<char>> values;
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    auto bytes = static_cast<const char*>(args[i]);
    values.emplace_back(bytes, bytes + kernel.params[i].size);
  }
  uint32_t seed = state().launches++;
  SourcePtr source = call.source(kernel.name);
  return [&kernel, values, shape, seed, source]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    shim::Launch launch{pointers.data(), shape.grid, shape.block, shape.shared, seed};
    shim::Outcome outcome = {};
    kernel.run(&launch, &outcome);
    if (outcome.divergent_barriers == 0) return;
    Lock lock(state().mutex);
    report(lock, "divergent barrier", "not all threads of a block reach a barrier", {{"launch", source}});
  };
}

LaunchFault* due_fault(const std::string& kernel, int device) {
  for (LaunchFault& fault : state().faults.launches) {
    bool fits = kernel.find(fault.kernel) != std::string::npos && (fault.device < 0 || fault.device == device);
    if (fits && fault.countdown.hits()) return &fault;
  }
  return nullptr;
}

}  // namespace

// Asks whoever has declared what this kernel touches. No lock is held, since the answer comes from Python.
void ask_describer(const Function& function, void** args, const LaunchShape& shape) {
  const HostKernel& kernel = *function.kernel;
  Describe describe = nullptr;
  {
    Lock lock(state().mutex);
    auto found = describers().find(kernel.name);
    if (found != describers().end()) describe = found->second;
  }
  if (!describe) return;
  std::vector<int32_t> sizes;
  for (const shim::Param& param : kernel.params) sizes.push_back(param.size);
  LaunchInfo info{kernel.name.c_str(), args, sizes.data(), int32_t(sizes.size()), {}, {}, shape.shared};
  memcpy(info.grid, shape.grid, sizeof info.grid);
  memcpy(info.block, shape.block, sizeof info.block);
  describe(&info);
}

CUresult launch(Call& call, const Function& function, const LaunchShape& shape, CUstream handle, void** args) {
  const HostKernel& kernel = *function.kernel;
  std::optional<std::vector<Touch>> touches = std::exchange(declared, std::nullopt);
  Stream* stream = call.stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->device != function.device) {
    std::string text = kernel.name + " of device " + std::to_string(function.device) + " on " + label(*stream);
    report(call, "wrong device", text, {{"launch", call.source(kernel.name)}});
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (cudaError_t lost = call.lost(stream->device)) return CUresult(lost);
  if (!shape.valid(function)) return CUDA_ERROR_INVALID_VALUE;
  if (!kernel.run) {
    report(call, "no host kernel", kernel.name + ": " + kernel.reason, {{"launch", call.source(kernel.name)}});
    return kNoHostKernel;
  }
  LaunchFault* fault = due_fault(kernel.name, stream->device);
  if (fault && !fault->when_run) return CUresult(fault->error);

  ++state().records.launches[kernel.name];
  Work work{kernel.name, kernel_run(call, kernel, args, shape)};
  work.kind = WorkKind::kernel;
  work.touches = touches ? std::move(*touches) : guess_touches(call, kernel, args);
  work.gate = flag_of(kernel, args);
  work.cost_ns = cost_of(kernel, args);
  if (state().time.on && is_spin(kernel.name)) work.run = nullptr;  // its time passes without the CPU's
  if (fault) work.fault = fault->error;
  check_peers(call, kernel, stream->device, work.touches);
  enqueue(call, *stream, std::move(work));
  return CUDA_SUCCESS;
}

void declare_touches(std::vector<Touch> touches) { declared = std::move(touches); }

void set_describer(Lock&, const std::string& kernel, Describe describe) {
  if (describe) describers()[kernel] = describe;
  else describers().erase(kernel);
}

}  // namespace fakecuda
