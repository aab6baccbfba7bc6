// Kernels: what the fake knows of those that were compiled for the CPU, and what their launches touch.
#pragma once

#include "../shim/launch.h"
#include "call.h"

namespace fakecuda {

// How a launch is told to Python, which may answer with the regions that it touches.
struct LaunchInfo {
  const char* kernel;
  void** args;
  const int32_t* sizes;
  int32_t arg_count;
  uint32_t grid[3], block[3];
  uint32_t shared;
};
using Describe = void (*)(const LaunchInfo*);

// A region as Python passes it.
struct PlainRegion {
  uint64_t address;
  uint64_t itemsize;
  int32_t write;
  int32_t ndim;
  const int64_t* shape;
  const int64_t* strides;
};

struct HostKernel {
  std::string name;
  shim::Run run = nullptr;  // null: not compiled for the CPU
  std::string reason;       // why not
  std::vector<shim::Param> params;
  std::string constness;  // a letter a parameter, from the source: 'c' for one declared const
};

// A kernel as one device knows it.
struct Function {
  HostKernel* kernel;
  int device;
  int most_shared = 48 << 10;  // bytes of dynamic shared memory that a launch may ask for
};

struct LaunchShape {
  unsigned grid[3], block[3], shared;

  bool valid(const Function& function) const {
    uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
    uint64_t blocks = uint64_t(grid[0]) * grid[1] * grid[2];
    return threads > 0 && threads <= 1024 && block[2] <= 64 && blocks > 0 && grid[0] <= 0x7fffffff &&
           grid[1] <= 65535 && grid[2] <= 65535 && int(shared) <= function.most_shared;
  }
};

constexpr CUresult kNoHostKernel = CUDA_ERROR_NOT_FOUND;

// Asks whoever has declared what this kernel touches. No lock may be held, since the answer comes from Python.
void ask_describer(const Function& function, void** args, const LaunchShape& shape);
CUresult launch(Call& call, const Function& function, const LaunchShape& shape, CUstream handle, void** args);

// Kernels are found by module and name, since CuPy uses one name for sources that differ.
HostKernel& host_kernel(Lock&, int64_t module, const std::string& name);

// The next launch of this thread touches these regions and no others.
void declare_touches(std::vector<Touch> touches);
// Asked at each launch of the kernel, with no lock held; null: no longer.
void set_describer(Lock&, const std::string& kernel, Describe describe);
// The module that this thread loads next is this one.
void set_loading_module(int64_t module);

Touch to_touch(const PlainRegion& region);

}  // namespace fakecuda
