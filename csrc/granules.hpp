// Runs of 2 MiB granules: what of an arena is free, and how long an extent should be.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace evoke {

constexpr size_t kGranuleBytes = size_t{2} << 20;
constexpr size_t kSlabGranules = 512;  // 1 GiB: no extent crosses a multiple of it
constexpr size_t kBlockAlignBytes = 4096;

// Free runs of granules. A run never crosses a slab boundary.
class GranuleMap {
 public:
  explicit GranuleMap(size_t granules);

  struct Run {
    size_t first = 0;
    size_t count = 0;
  };
  // The smallest run of at least `ideal` granules, cut to it; else the longest run of at least
  // `least`, whole. A count of 0 says there is none.
  Run take(size_t ideal, size_t least);
  void give_back(Run run);
  size_t free_granules() const { return free_granules_; }
  size_t longest_run() const;

 private:
  void add(size_t first, size_t count);
  void remove(size_t first, size_t count);

  std::map<size_t, size_t> by_place_;
  std::set<std::pair<size_t, size_t>> by_length_;  // (count, first)
  size_t free_granules_ = 0;
};

// Granules of an extent for blocks of stride_bytes in an arena of arena_granules: at most 1/32
// wasted where the arena allows, and a small part of the arena (16 to 64 MiB in a large one).
size_t ideal_extent_granules(size_t stride_bytes, size_t arena_granules);

}  // namespace evoke
