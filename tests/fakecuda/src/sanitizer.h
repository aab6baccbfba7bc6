// With kernels that were compiled with the address sanitizer: device memory is out of bounds for a kernel, but for what
// it is taken to touch. What it does otherwise becomes a report.
#pragma once

#include "state.h"

namespace fakecuda {

// Looks for the sanitizer, whose library must have been preloaded. False: it is not there.
bool find_sanitizer();
bool has_sanitizer();

// Holds while one kernel or copy runs. Kernels run one at a time then.
class SanitizedRun {
 public:
  // Only these may be touched; null: everything.
  explicit SanitizedRun(const std::vector<Touch>* touches);
  ~SanitizedRun();
  SanitizedRun(const SanitizedRun&) = delete;
  SanitizedRun& operator=(const SanitizedRun&) = delete;

 private:
  std::unique_lock<std::mutex> alone_;
  std::vector<std::pair<char*, size_t>> fenced_;
};

}  // namespace fakecuda
