#include "sanitizer.h"

#include <dlfcn.h>

#include "memory.h"

namespace fakecuda {

namespace {

using Mark = void (*)(const volatile void*, size_t);
using SetCallback = void (*)(void (*)(const char*));

Mark poison = nullptr, unpoison = nullptr;

std::mutex& one_at_a_time() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void on_error(const char* text) {
  std::string all = text;
  size_t start = all.find("ERROR: ");
  Lock lock(state().mutex);
  report(lock, "sanitizer", start == std::string::npos ? all : all.substr(start, 600));
}

// Runs of bytes, in rising order of the outer levels.
void open_part(uintptr_t begin, const Region& region, size_t level) {
  if (level == region.repeats().size()) {
    unpoison(reinterpret_cast<void*>(begin), region.run());
    return;
  }
  const Repeat& repeat = region.repeats()[level];
  for (uint64_t i = 0; i < repeat.count; ++i) open_part(begin + i * repeat.stride, region, level + 1);
}

}  // namespace

bool find_sanitizer() {
  poison = reinterpret_cast<Mark>(dlsym(RTLD_DEFAULT, "__asan_poison_memory_region"));
  unpoison = reinterpret_cast<Mark>(dlsym(RTLD_DEFAULT, "__asan_unpoison_memory_region"));
  auto set_callback = reinterpret_cast<SetCallback>(dlsym(RTLD_DEFAULT, "__asan_set_error_report_callback"));
  if (!poison || !unpoison || !set_callback) return false;
  set_callback(on_error);
  return true;
}

bool has_sanitizer() { return poison != nullptr; }

SanitizedRun::SanitizedRun(const std::vector<Touch>* touches) {
  if (!poison) return;
  alone_ = std::unique_lock<std::mutex>(one_at_a_time());
  if (!touches) return;
  {
    Lock lock(state().mutex);
    for (const auto& [address, block] : state().blocks) {
      if (block.kind == MemoryKind::device && !block.freed) fenced_.push_back({block.base, whole_pages(block.size)});
    }
  }
  for (const auto& [base, size] : fenced_) poison(base, size);
  for (const Touch& touch : *touches) {
    if (!touch.region.empty()) open_part(touch.region.begin(), touch.region, 0);
  }
}

SanitizedRun::~SanitizedRun() {
  for (const auto& [base, size] : fenced_) unpoison(base, size);
}

}  // namespace fakecuda
