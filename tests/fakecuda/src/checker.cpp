#include "checker.h"

#include "memory.h"

namespace fakecuda {

namespace {

constexpr size_t kLongHistory = 64;

const char* word(bool write) { return write ? "write" : "read"; }

std::string place_of(const Block& block) {
  std::string where = block.device >= 0 ? "device " + std::to_string(block.device) : "pinned memory";
  return "a block of " + std::to_string(block.size) + " bytes in " + where;
}

// What every host thread knows: whatever is enqueued from now on happens after it.
Clock known_to_all() {
  Clock clock;
  bool first = true;
  for (Host* host : state().hosts) {
    if (!host->acts) continue;
    if (first) clock = host->clock;
    else clock.meet(host->clock);
    first = false;
  }
  return clock;
}

void forget_settled(std::vector<Access>& history) {
  Clock known = known_to_all();
  auto settled = [&](const Access& access) { return access.tick <= known.at(access.actor); };
  history.erase(std::remove_if(history.begin(), history.end(), settled), history.end());
}

bool in_bounds(Lock& lock, const Block& block, const Touch& touch, const SourcePtr& source) {
  uintptr_t base = reinterpret_cast<uintptr_t>(block.base);
  if (block.freed) {
    report(lock, "use after free", place_of(block) + " that was freed", {{word(touch.write), source}});
    return false;
  }
  if (touch.region.begin() < base || touch.region.end() > base + block.size) {
    std::string text = "bytes " + touch.region.text(base) + " of " + place_of(block);
    report(lock, "out of bounds", text, {{word(touch.write), source}});
    return false;
  }
  return true;
}

// Reports a race between two accesses. True: whatever races with the old one must also race with the new one, so that
// the old one can be forgotten.
bool replaces(Lock& lock, const Block& block, const Touch& touch, const Access& old, int actor, const Clock& clock,
              const SourcePtr& source) {
  bool ordered = old.tick <= clock.at(old.actor);
  if (!ordered && (touch.write || old.write) && touch.region.meets(old.region)) {
    std::string bytes = touch.region.text(reinterpret_cast<uintptr_t>(block.base));
    report(lock, "race", "bytes " + bytes + " of " + place_of(block),
           {{word(touch.write), source}, {word(old.write), old.source}});
  }
  bool stronger = touch.write || (!old.write && old.actor == actor);
  return ordered && stronger && touch.region.covers(old.region);
}

}  // namespace

bool check_access(Lock& lock, const Touch& touch, int actor, const Clock& clock, const SourcePtr& source) {
  const Region& region = touch.region;
  if (region.empty()) return true;
  Block* block = find_block(lock, region.anchor());
  if (!block && in_arena(region.anchor())) {
    report(lock, "out of bounds", "no allocation is there", {{word(touch.write), source}});
    return false;
  }
  if (!block) return true;  // pageable host memory is not tracked
  if (!in_bounds(lock, *block, touch, source)) return false;
  const Piece* piece = find_piece(lock, region.anchor());
  if (piece && !piece->live) {
    report(lock, "use after free", "memory that its pool has taken back", {{word(touch.write), source}});
  }

  std::vector<Access>& history = block->history;
  if (history.size() > kLongHistory) forget_settled(history);
  size_t kept = 0;
  for (size_t i = 0; i < history.size(); ++i) {
    Access& old = history[i];
    if (!region.near(old.region) || !replaces(lock, *block, touch, old, actor, clock, source)) {
      if (kept != i) history[kept] = std::move(old);
      ++kept;
    }
  }
  history.resize(kept);
  history.push_back({region, touch.write, actor, clock.at(actor), source});
  return true;
}

}  // namespace fakecuda
