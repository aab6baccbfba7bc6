// Vector clocks: what has happened before a point, as one counter an actor. Actors are streams and host threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fakecuda {

using Tick = uint64_t;

class Clock {
 public:
  Tick at(int actor) const { return size_t(actor) < ticks_.size() ? ticks_[actor] : 0; }

  void advance(int actor) {
    if (ticks_.size() <= size_t(actor)) ticks_.resize(actor + 1, 0);
    ++ticks_[actor];
  }

  // Afterwards all that happened before `other` happened before this point too.
  void join(const Clock& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size(), 0);
    for (size_t i = 0; i < other.ticks_.size(); ++i) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }

  // Keeps what is known here and there.
  void meet(const Clock& other) {
    ticks_.resize(std::min(ticks_.size(), other.ticks_.size()));
    for (size_t i = 0; i < ticks_.size(); ++i) ticks_[i] = std::min(ticks_[i], other.ticks_[i]);
  }

 private:
  std::vector<Tick> ticks_;
};

}  // namespace fakecuda
