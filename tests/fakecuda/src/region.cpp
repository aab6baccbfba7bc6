#include "region.h"

#include <algorithm>

namespace fakecuda {

namespace {

// A region or a part of one: its repeats from some level inward.
struct Part {
  int64_t begin;
  int64_t run;
  const Repeat* repeats;
  size_t depth;

  int64_t extent() const {
    int64_t bytes = run;
    for (size_t i = 0; i < depth; ++i) bytes += int64_t((repeats[i].count - 1) * repeats[i].stride);
    return bytes;
  }
};

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Two rows of pieces with one stride: is there a multiple of it that brings two pieces together?
bool rows_meet(const Part& a, const Part& b) {
  int64_t stride = int64_t(a.repeats[0].stride), distance = b.begin - a.begin;
  int64_t step = floor_div(distance - a.run, stride) + 1;
  step = std::max(step, -int64_t(b.repeats[0].count - 1));
  return step <= int64_t(a.repeats[0].count - 1) && step * stride < distance + b.run;
}

bool parts_meet(const Part& a, const Part& b, int64_t& budget) {
  int64_t a_extent = a.extent(), b_extent = b.extent();
  if (a.begin + a_extent <= b.begin || b.begin + b_extent <= a.begin) return false;
  if (a.depth == 0 && b.depth == 0) return true;
  if (--budget < 0) return true;  // too intricate: assume the worst
  if (a.depth == 1 && b.depth == 1 && a.repeats[0].stride == b.repeats[0].stride) return rows_meet(a, b);

  bool split_a = b.depth == 0 || (a.depth > 0 && a_extent >= b_extent);
  const Part& whole = split_a ? a : b;
  const Part& other = split_a ? b : a;
  Part piece{whole.begin, whole.run, whole.repeats + 1, whole.depth - 1};
  int64_t stride = int64_t(whole.repeats[0].stride), last = int64_t(whole.repeats[0].count) - 1;
  int64_t first_near = floor_div(other.begin - piece.extent() - whole.begin, stride) + 1;
  int64_t last_near = floor_div(other.begin + other.extent() - 1 - whole.begin, stride);
  for (int64_t i = std::max<int64_t>(first_near, 0); i <= std::min(last_near, last); ++i) {
    piece.begin = whole.begin + i * stride;
    if (parts_meet(piece, other, budget)) return true;
  }
  return false;
}

// Innermost levels that leave no gap become part of the run; a level that continues the next one joins it.
void merge(uint64_t& run, std::vector<Repeat>& repeats) {
  while (!repeats.empty() && repeats.back().stride <= run) {
    run += (repeats.back().count - 1) * repeats.back().stride;
    repeats.pop_back();
  }
  for (size_t i = repeats.size(); i-- > 1;) {
    Repeat &outer = repeats[i - 1], &inner = repeats[i];
    if (outer.stride != inner.stride * inner.count) continue;
    inner.count *= outer.count;
    outer = inner;
    repeats.erase(repeats.begin() + long(i));
  }
}

}  // namespace

Region Region::strided(const void* ptr, size_t itemsize, int ndim, const int64_t* shape, const int64_t* strides) {
  Region region(ptr, itemsize);
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] <= 0) return Region();
    if (shape[d] == 1 || strides[d] == 0) continue;
    uint64_t stride = strides[d] < 0 ? uint64_t(-strides[d]) : uint64_t(strides[d]);
    if (strides[d] < 0) region.begin_ -= uint64_t(shape[d] - 1) * stride;
    region.repeats_.push_back({uint64_t(shape[d]), stride});
  }
  std::stable_sort(region.repeats_.begin(), region.repeats_.end(),
                   [](const Repeat& a, const Repeat& b) { return a.stride > b.stride; });
  merge(region.run_, region.repeats_);
  Part whole{0, int64_t(region.run_), region.repeats_.data(), region.repeats_.size()};
  region.end_ = region.begin_ + uintptr_t(whole.extent());
  return region;
}

bool Region::meets(const Region& other) const {
  if (empty() || other.empty() || !near(other)) return false;
  int64_t budget = 1 << 20;
  Part mine{int64_t(begin_), int64_t(run_), repeats_.data(), repeats_.size()};
  Part theirs{int64_t(other.begin_), int64_t(other.run_), other.repeats_.data(), other.repeats_.size()};
  return parts_meet(mine, theirs, budget);
}

bool Region::covers(const Region& other) const {
  if (contiguous()) return begin_ <= other.begin_ && other.end() <= end();
  auto same = [](const Repeat& a, const Repeat& b) { return a.count == b.count && a.stride == b.stride; };
  return begin_ == other.begin_ && run_ == other.run_ && repeats_.size() == other.repeats_.size() &&
         std::equal(repeats_.begin(), repeats_.end(), other.repeats_.begin(), same);
}

std::string Region::text(uintptr_t base) const {
  std::string text = "[" + std::to_string(begin_ - base) + ", " + std::to_string(end() - base) + ")";
  if (contiguous()) return text;
  return text + ", " + std::to_string(run_) + " of every " + std::to_string(repeats_.back().stride) + " bytes";
}

}  // namespace fakecuda
