#include "kernels.h"

namespace fakecuda {

namespace {

std::map<std::pair<int64_t, std::string>, std::unique_ptr<HostKernel>>& registry() {
  static auto* kernels = new std::map<std::pair<int64_t, std::string>, std::unique_ptr<HostKernel>>;
  return *kernels;
}

}  // namespace

HostKernel& host_kernel(Lock&, int64_t module, const std::string& name) {
  std::unique_ptr<HostKernel>& kernel = registry()[{module, name}];
  if (!kernel) {
    kernel = std::make_unique<HostKernel>();
    kernel->name = name;
    kernel->reason = "its source was not seen";
  }
  return *kernel;
}

Touch to_touch(const PlainRegion& region) {
  auto ptr = reinterpret_cast<const void*>(region.address);
  return {Region::strided(ptr, region.itemsize, region.ndim, region.shape, region.strides), region.write != 0};
}

}  // namespace fakecuda
