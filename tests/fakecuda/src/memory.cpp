#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace fakecuda {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kArena = size_t(1) << 40;  // addresses, not memory: one range a device, one for pinned memory
constexpr int kPoison = 0xCB;               // a read before the first write gives odd values
constexpr int kInaccessible = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

uintptr_t key(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

// Addresses that are given out once, each block followed by a page that may not be touched.
class Arena {
 public:
  char* take(size_t size) {
    if (!base_) {
      void* range = mmap(nullptr, kArena, PROT_NONE, kInaccessible, -1, 0);
      if (range == MAP_FAILED) return nullptr;
      base_ = static_cast<char*>(range);
    }
    size_t bytes = whole_pages(size);
    if (next_ + bytes + kPage > kArena) return nullptr;
    char* ptr = base_ + next_;
    if (mprotect(ptr, bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
    next_ += bytes + kPage;
    return ptr;
  }

  bool holds(const void* ptr) const { return base_ && ptr >= base_ && ptr < base_ + kArena; }

 private:
  char* base_ = nullptr;
  size_t next_ = 0;
};

std::vector<Arena>& arenas() {  // of pinned memory, then of each device
  static auto* all = new std::vector<Arena>(state().devices.size() + 1);
  return *all;
}

bool refused(State& st, size_t size, int device) {
  if (device < 0) return st.faults.pinned_allocation.hits();
  Device& owner = st.devices[size_t(device)];
  return st.faults.device_allocation.hits() || size > owner.limit || owner.used > owner.limit - size;
}

void count(State& st, int device, size_t size) {
  if (device < 0) {
    st.pinned_used += size;
    st.pinned_peak = std::max(st.pinned_peak, st.pinned_used);
    return;
  }
  Device& owner = st.devices[size_t(device)];
  owner.used += size;
  owner.peak = std::max(owner.peak, owner.used);
}

}  // namespace

size_t whole_pages(size_t size) { return (std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage; }

Block* allocate(Lock&, size_t size, int device, MemoryKind kind) {
  State& st = state();
  if (refused(st, size, device)) return nullptr;
  char* ptr = arenas()[size_t(device + 1)].take(size);
  if (!ptr) return nullptr;
  memset(ptr, kPoison, size);
  count(st, device, size);
  return &(st.blocks[key(ptr)] = Block{ptr, size, device, kind, false, false, {}});
}

bool register_host(Lock&, void* ptr, size_t size) {
  auto [place, added] = state().blocks.try_emplace(key(ptr));
  if (added) place->second = Block{static_cast<char*>(ptr), size, -1, MemoryKind::registered, false, false, {}};
  return added;
}

Block* find_block(Lock&, const void* ptr) {
  auto& blocks = state().blocks;
  auto it = blocks.upper_bound(key(ptr));
  if (it == blocks.begin()) return nullptr;
  Block& block = (--it)->second;
  bool inside = key(ptr) < key(block.base) + block.size || key(ptr) == key(block.base);
  return inside ? &block : nullptr;
}

bool in_arena(const void* ptr) {
  auto holds = [ptr](const Arena& arena) { return arena.holds(ptr); };
  return std::any_of(arenas().begin(), arenas().end(), holds);
}

MemoryKind kind_of(Lock& lock, const void* ptr) {
  Block* block = find_block(lock, ptr);
  return block ? block->kind : MemoryKind::pageable;
}

int device_of(Lock& lock, const void* ptr) {
  Block* block = find_block(lock, ptr);
  return block ? block->device : -1;
}

size_t extent_from(Lock& lock, const void* ptr) {
  auto& pieces = state().pieces;
  auto it = pieces.upper_bound(key(ptr));
  if (it != pieces.begin()) {
    --it;
    if (key(ptr) < it->first + it->second.size) return it->first + it->second.size - key(ptr);
  }
  Block* block = find_block(lock, ptr);
  return block ? key(block->base) + block->size - key(ptr) : 0;
}

bool mark_freed(Lock& lock, const void* ptr, const std::string& what, const Place& place) {
  Block* block = find_block(lock, ptr);
  if (!block || block->base != ptr || block->freed) {
    auto source = std::make_shared<Source>(Source{what, "host", place});
    report(lock, "bad free", block && block->freed ? "freed twice" : "no allocation starts there", {{"free", source}});
    return false;
  }
  block->freed = true;
  if (block->device >= 0) state().devices[size_t(block->device)].used -= block->size;
  else state().pinned_used -= block->size;
  return true;
}

void unmap(Lock& lock, void* ptr) {
  Block* block = find_block(lock, ptr);
  if (block) mmap(block->base, whole_pages(block->size), PROT_NONE, kInaccessible | MAP_FIXED, -1, 0);
}

void forget(Lock&, void* ptr) { state().blocks.erase(key(ptr)); }

void forget_freed(Lock&) {
  auto& blocks = state().blocks;
  for (auto it = blocks.begin(); it != blocks.end();) {
    if (it->second.freed) it = blocks.erase(it);
    else (it++)->second.history.clear();
  }
  state().pieces.clear();
}

void add_piece(Lock&, const void* ptr, size_t size) {
  auto& pieces = state().pieces;
  auto it = pieces.lower_bound(key(ptr));
  if (it != pieces.begin() && std::prev(it)->first + std::prev(it)->second.size > key(ptr)) --it;
  while (it != pieces.end() && it->first < key(ptr) + size) it = pieces.erase(it);
  if (size) pieces[key(ptr)] = Piece{size, true};
}

void free_piece(Lock&, const void* ptr) {
  auto it = state().pieces.find(key(ptr));
  if (it != state().pieces.end()) it->second.live = false;
}

const Piece* find_piece(Lock&, const void* ptr) {
  auto& pieces = state().pieces;
  auto it = pieces.upper_bound(key(ptr));
  if (it == pieces.begin()) return nullptr;
  --it;
  return key(ptr) < it->first + it->second.size ? &it->second : nullptr;
}

}  // namespace fakecuda
