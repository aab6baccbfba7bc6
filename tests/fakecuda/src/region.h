// Regions: the exact bytes that a strided array occupies, and whether two of them meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fakecuda {

// One level of repetition: `count` times, `stride` bytes apart. Both are positive.
struct Repeat {
  uint64_t count;
  uint64_t stride;
};

// Runs of `run` bytes at begin + the sum of i[d] * repeats[d].stride. The outermost repeat comes first.
class Region {
 public:
  Region() = default;
  Region(const void* ptr, size_t size)
      : anchor_(ptr), begin_(reinterpret_cast<uintptr_t>(ptr)), end_(begin_ + size), run_(size) {}

  // Of an array with strides in bytes, in any order and of any sign.
  static Region strided(const void* ptr, size_t itemsize, int ndim, const int64_t* shape, const int64_t* strides);

  const void* anchor() const { return anchor_; }  // the address it was made from: the first element's
  uintptr_t begin() const { return begin_; }
  uintptr_t end() const { return end_; }  // one past the last byte
  uint64_t run() const { return run_; }
  bool empty() const { return run_ == 0; }
  bool contiguous() const { return repeats_.empty(); }
  const std::vector<Repeat>& repeats() const { return repeats_; }

  // Whether there is a byte between the first and the last one of both.
  bool near(const Region& other) const { return begin_ < other.end_ && other.begin_ < end_; }
  bool meets(const Region& other) const;
  // False also where it would be hard to tell.
  bool covers(const Region& other) const;
  // "[0, 4096)" or "[0, 4096), 16 of every 64 bytes", counted from `base`.
  std::string text(uintptr_t base) const;

 private:
  const void* anchor_ = nullptr;
  uintptr_t begin_ = 0, end_ = 0;
  uint64_t run_ = 0;
  std::vector<Repeat> repeats_;
};

}  // namespace fakecuda
