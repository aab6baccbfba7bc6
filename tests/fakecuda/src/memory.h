// Memory of the fake devices, and pinned memory: real host memory, poisoned when new, inaccessible once freed.
#pragma once

#include "state.h"

namespace fakecuda {

// A new block, or null where the limit of the device is reached or a fault is due. `device` -1: pinned.
Block* allocate(Lock&, size_t size, int device, MemoryKind kind, bool stream_ordered = false);
// Gives back what the device's pool has reserved above `keep` bytes and does not use.
void trim_pool(Lock&, int device, size_t keep);
// Tells of host memory that the program has allocated itself. False: it is registered already.
bool register_host(Lock&, void* ptr, size_t size);

// How much a block of this size really takes.
size_t whole_pages(size_t size);

Block* find_block(Lock&, const void* ptr);
// Whether an address can only be device or pinned memory, be it allocated or not.
bool in_arena(const void* ptr);
MemoryKind kind_of(Lock&, const void* ptr);
int device_of(Lock&, const void* ptr);  // -1: host memory

// Bytes from ptr to the end of its piece if that is known, else of its block.
size_t extent_from(Lock&, const void* ptr);

// Marks a block freed, so that any later use is an error. False (and a report): no block starts there.
bool mark_freed(Lock&, const void* ptr, const std::string& what, const Place& place);
// Makes a freed block inaccessible: a late access faults, and its address is not given out again before a reset.
void unmap(Lock&, void* ptr);
// Forgets a registered range. The memory stays the program's.
void forget(Lock&, void* ptr);
// Forgets what was freed, and all pieces. Nothing may be running.
void forget_freed(Lock&);

// Pieces: what an allocator above CUDA's (a pool) hands out and takes back.
void add_piece(Lock&, const void* ptr, size_t size);
void free_piece(Lock&, const void* ptr);
const Piece* find_piece(Lock&, const void* ptr);

}  // namespace fakecuda
