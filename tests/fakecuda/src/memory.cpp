#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace fakecuda {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kArena = size_t(1) << 40;  // addresses, not memory: one range a device, one for pinned memory
constexpr int kPoison = 0xCB;               // a read before the first write gives odd values
constexpr size_t kLarge = size_t(16) << 20;
constexpr int kInaccessible = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

uintptr_t key(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr); }

// A file full of poison, in memory. Large blocks are private views of it, so that only what is written takes memory.
int poison_file() {
  static const int file = [] {
    int made = memfd_create("fakecuda-poison", MFD_CLOEXEC);
    if (made < 0 || ftruncate(made, kLarge) != 0) return -1;
    void* view = mmap(nullptr, kLarge, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (view == MAP_FAILED) return -1;
    memset(view, kPoison, kLarge);
    munmap(view, kLarge);
    return made;
  }();
  return file;
}

void fill_with_poison(char* ptr, size_t size) {
  size_t done = 0;
  for (; size - done >= kLarge; done += kLarge) {
    void* view = mmap(ptr + done, kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, poison_file(), 0);
    if (view == MAP_FAILED) break;
  }
  memset(ptr + done, kPoison, size - done);
}

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

constexpr size_t kPoolStep = size_t(32) << 20;

bool take_from_device(Device& device, size_t size) {
  if (size > device.limit || device.used > device.limit - size) return false;
  device.used += size;
  device.peak = std::max(device.peak, device.used);
  return true;
}

// A pool grows in large steps, as long as there is room for them.
bool take_from_pool(Device& device, size_t size) {
  Pool& pool = device.pool;
  size_t missing = pool.used + size > pool.reserved ? pool.used + size - pool.reserved : 0;
  size_t step = (missing + kPoolStep - 1) / kPoolStep * kPoolStep;
  if (!take_from_device(device, step)) {
    if (!take_from_device(device, missing)) return false;
    step = missing;
  }
  pool.reserved += step;
  pool.used += size;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  pool.used_high = std::max(pool.used_high, pool.used);
  return true;
}

bool take(State& st, size_t size, int device, bool stream_ordered) {
  if (device < 0) {
    if (st.faults.pinned_allocation.hits()) return false;
    st.pinned_used += size;
    st.pinned_peak = std::max(st.pinned_peak, st.pinned_used);
    return true;
  }
  if (st.faults.device_allocation.hits()) return false;
  Device& owner = st.devices[size_t(device)];
  return stream_ordered ? take_from_pool(owner, size) : take_from_device(owner, size);
}

void give_back(Lock& lock, const Block& block) {
  State& st = state();
  if (block.device < 0) {
    st.pinned_used -= block.size;
    return;
  }
  Device& owner = st.devices[size_t(block.device)];
  if (!block.stream_ordered) {
    owner.used -= block.size;
    return;
  }
  owner.pool.used -= block.size;
  trim_pool(lock, block.device, size_t(std::min<uint64_t>(owner.pool.release_threshold, owner.pool.reserved)));
}

}  // namespace

size_t whole_pages(size_t size) { return (std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage; }

Block* allocate(Lock&, size_t size, int device, MemoryKind kind, bool stream_ordered) {
  State& st = state();
  if (!take(st, size, device, stream_ordered)) return nullptr;
  char* ptr = arenas()[size_t(device + 1)].take(size);
  if (!ptr) return nullptr;
  fill_with_poison(ptr, size);
  return &(st.blocks[key(ptr)] = Block{ptr, size, device, kind, stream_ordered, false, {}});
}

void trim_pool(Lock&, int device, size_t keep) {
  Device& owner = state().devices[size_t(device)];
  size_t needed = (owner.pool.used + kPoolStep - 1) / kPoolStep * kPoolStep;
  size_t kept = std::min(owner.pool.reserved, std::max(needed, keep));
  owner.used -= owner.pool.reserved - kept;
  owner.pool.reserved = kept;
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
  give_back(lock, *block);
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
