#include "granules.hpp"

#include <algorithm>
#include <iterator>

namespace evoke {

GranuleMap::GranuleMap(size_t granules) {
  for (size_t first = 0; first < granules; first += kSlabGranules) {
    add(first, std::min(kSlabGranules, granules - first));
  }
}

void GranuleMap::add(size_t first, size_t count) {
  by_place_.emplace(first, count);
  by_length_.emplace(count, first);
  free_granules_ += count;
}

void GranuleMap::remove(size_t first, size_t count) {
  by_place_.erase(first);
  by_length_.erase({count, first});
  free_granules_ -= count;
}

GranuleMap::Run GranuleMap::take(size_t ideal, size_t least) {
  auto it = by_length_.lower_bound({ideal, 0});
  if (it == by_length_.end()) {
    if (it == by_length_.begin()) return {};
    it = by_length_.lower_bound({longest_run(), 0});  // of equal runs, the lowest
    if (it->first < least) return {};
  }
  const auto [count, first] = *it;
  const size_t taken = std::min(count, ideal);
  remove(first, count);
  if (taken < count) add(first + taken, count - taken);
  return {first, taken};
}

void GranuleMap::give_back(Run run) {
  auto next = by_place_.lower_bound(run.first);
  if (next != by_place_.begin()) {
    const auto [first, count] = *std::prev(next);
    if (first + count == run.first && run.first % kSlabGranules != 0) {
      remove(first, count);
      run = {first, count + run.count};
    }
  }
  const size_t end = run.first + run.count;
  next = by_place_.lower_bound(end);
  if (next != by_place_.end() && next->first == end && end % kSlabGranules != 0) {
    const size_t count = next->second;
    remove(end, count);
    run.count += count;
  }
  add(run.first, run.count);
}

size_t GranuleMap::longest_run() const {
  return by_length_.empty() ? 0 : by_length_.rbegin()->first;
}

size_t ideal_extent_granules(size_t stride_bytes, size_t arena_granules) {
  const size_t one_block = (stride_bytes + kGranuleBytes - 1) / kGranuleBytes;
  const size_t modest = std::clamp<size_t>(arena_granules / 16, 1, 8);
  const size_t most = std::max(one_block, std::min(kSlabGranules, arena_granules));
  for (size_t count = std::max(one_block, modest); count <= most; ++count) {
    const size_t bytes = count * kGranuleBytes;
    if (bytes % stride_bytes * 32 <= bytes) return count;
  }
  return most;
}

}  // namespace evoke
