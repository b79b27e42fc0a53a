// One tier memory, carved into extents of one block size each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "arena_map.hpp"
#include "granules.hpp"
#include "memory.hpp"
#include "placement.hpp"

namespace evoke {

// Not thread-safe, except prefault, prefaulted_bytes and close against each other.
class Arena {
 public:
  using Backing = evoke::Backing;

  struct ExtentInfo {
    uint64_t offset, bytes, block_bytes, blocks_used, blocks;
  };
  struct Stats {
    uint64_t capacity_bytes, allocated_bytes, extent_bytes, free_granule_bytes,
        largest_free_run_bytes, wasted_bytes, blocks;
  };

  // capacity_bytes is rounded up to 2 MiB. `want` is the best backing to try; the next worse one
  // follows when the machine lacks it. Throws std::invalid_argument (capacity 0 or over 2^56),
  // std::system_error when nothing can be mapped.
  // node: where all pages come from, from the first touch on.
  Arena(size_t capacity_bytes, Backing want, bool lock, int node = kAnyNode);
  // The first capacity_bytes of a devdax character device: memory that the kernel does not give to
  // anybody else. Throws std::invalid_argument (not such a device, or a smaller one).
  Arena(const std::string& device, size_t capacity_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Touches every page with `threads` threads, then locks if asked to. Throws std::system_error
  // with the bytes done when the kernel has no more memory, or when close() was called meanwhile.
  void prefault(size_t threads);
  size_t prefaulted_bytes() const { return prefaulted_bytes_.load(std::memory_order_relaxed); }

  // Offsets of up to count blocks, fewer when there is no room.
  std::vector<uint64_t> allocate(size_t block_bytes, size_t count);
  // Throws std::invalid_argument on an offset that is not an allocated block; frees nothing then.
  void free(std::span<const uint64_t> offsets);

  bool can_ever_hold(size_t block_bytes) const;
  std::vector<ExtentInfo> extents() const;  // by offset
  Stats stats() const;
  uint8_t* address() const { return memory_.data(); }
  size_t capacity_bytes() const { return granules_ * kGranuleBytes; }
  const char* backing() const;
  int node() const { return node_; }
  // Where the pages are now; after prefault. Thread-safe but for close.
  Placement placement(int node) const;
  bool locked() const { return locked_.load(std::memory_order_relaxed); }
  void close();  // ends a running prefault; every later call throws std::invalid_argument

 private:
  struct Extent {
    GranuleMap::Run run;  // count 0: this slot is unused
    size_t block_bytes = 0;
    size_t stride_bytes = 0;
    size_t blocks = 0;
    size_t used = 0;
    size_t first_free_word = 0;    // no free block before this word of `free`
    std::vector<uint64_t> free{};  // bit set: the block is free
  };

  Arena(ArenaMemory mapped, bool lock, int node);
  void prefault_chunks(std::atomic<size_t>& next, std::atomic<int>& error);
  void require_open() const;
  Extent* extent_with_room(size_t block_bytes);
  Extent* new_extent(size_t block_bytes);
  void drop_extent(uint32_t number);
  uint64_t take_block(Extent& extent);
  Extent* allocated_block(uint64_t offset, size_t* block);

  Mapping memory_;
  Backing backing_;
  size_t granules_;
  bool lock_wanted_;
  int node_;
  std::mutex prefault_mutex_;  // held while prefault runs, so that close waits for it
  std::atomic<bool> closing_{false};
  std::atomic<bool> locked_{false};
  std::atomic<size_t> prefaulted_bytes_{0};

  GranuleMap granule_map_;
  std::vector<uint32_t> extent_of_granule_;  // extent number + 1; 0: free
  std::vector<Extent> extents_;
  std::vector<uint32_t> unused_extents_;
  // Per block size: first granules of the extents with room, so that low addresses fill first and
  // the others can become empty.
  std::map<size_t, std::set<size_t>> roomy_;
  uint64_t allocated_bytes_ = 0;
  uint64_t extent_bytes_ = 0;
  uint64_t usable_bytes_ = 0;  // blocks x block_bytes of all extents
  uint64_t blocks_ = 0;
};

}  // namespace evoke
