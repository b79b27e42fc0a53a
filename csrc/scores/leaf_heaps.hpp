// Leaves of one cache, the oldest of each class and block size on top.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "return_learner.hpp"

namespace evoke {

// Entries go stale when a block is used again, gets a child or leaves; nobody takes them out, they
// are passed over when they come to the top and swept when they are many.
class LeafHeaps {
 public:
  explicit LeafHeaps(const ReturnLearner* learner) : learner_(learner) {}

  // Empties.
  void start(ClassSet set);
  ClassSet set() const { return set_; }

  // is_leaf(id): whether it is a leaf of this cache now.
  template <typename IsLeaf>
  void push(uint32_t id, IsLeaf is_leaf) {
    std::vector<Leaf>& heap = heaps_[heap_of(id)];
    heap.push_back({learner_->filing_of(id), id});
    std::push_heap(heap.begin(), heap.end(), std::greater());
    if (++entries_ > sweep_at_) sweep(is_leaf);
  }

  // The least worth keeping of the oldest leaves of each class; the older of equals; kNoId when
  // there is none. own: the newest request's leaf or kNoId, which is in no rank behind older ones
  // of its class: it goes when it is worth less than the least of those.
  template <typename IsLeaf>
  uint32_t worst(uint32_t own, IsLeaf is_leaf) {
    uint32_t worst = kNoId;
    double worst_worth = 0;
    for (size_t at = 0; at < heaps_.size(); ++at) {
      drop_stale(at, is_leaf);
      if (heaps_[at].empty()) continue;
      const uint32_t id = heaps_[at].front().id;
      const double worth = learner_->worth(set_, id);
      if (worst == kNoId || worth < worst_worth ||
          (worth == worst_worth && heaps_[at].front().filing < learner_->filing_of(worst))) {
        worst = id;
        worst_worth = worth;
      }
    }
    if (own != kNoId && learner_->worth(set_, own) < worst_worth) return own;
    return worst;
  }

  template <typename IsLeaf>
  std::vector<uint32_t> leaves(IsLeaf is_leaf) {
    sweep(is_leaf);
    std::vector<uint32_t> ids;
    for (const std::vector<Leaf>& heap : heaps_) {
      for (const Leaf& leaf : heap) ids.push_back(leaf.id);
    }
    return ids;
  }

 private:
  struct Leaf {
    uint64_t filing;
    uint32_t id;
    auto operator<=>(const Leaf&) const = default;
  };
  static constexpr size_t kSweepLeast = 1024;

  size_t heap_of(uint32_t id);

  template <typename IsLeaf>
  bool is_current(size_t at, const Leaf& leaf, IsLeaf is_leaf) {
    return is_leaf(leaf.id) && learner_->filing_of(leaf.id) == leaf.filing &&
           heap_of(leaf.id) == at;
  }
  template <typename IsLeaf>
  void drop_stale(size_t at, IsLeaf is_leaf) {
    std::vector<Leaf>& heap = heaps_[at];
    while (!heap.empty() && !is_current(at, heap.front(), is_leaf)) {
      std::pop_heap(heap.begin(), heap.end(), std::greater());
      heap.pop_back();
      --entries_;
    }
  }
  template <typename IsLeaf>
  void sweep(IsLeaf is_leaf) {
    entries_ = 0;
    for (size_t at = 0; at < heaps_.size(); ++at) {
      std::vector<Leaf>& heap = heaps_[at];
      std::erase_if(heap, [&](const Leaf& leaf) { return !is_current(at, leaf, is_leaf); });
      std::sort(heap.begin(), heap.end());  // a sorted vector is a heap
      heap.erase(std::unique(heap.begin(), heap.end()), heap.end());
      entries_ += heap.size();
    }
    sweep_at_ = std::max(kSweepLeast, 2 * entries_);
  }

  const ReturnLearner* learner_;
  ClassSet set_ = ClassSet::kAge;
  std::vector<uint32_t> sizes_;           // of blocks, as they were first seen
  std::vector<std::vector<Leaf>> heaps_;  // by size, then class
  size_t entries_ = 0;
  size_t sweep_at_ = kSweepLeast;
};

}  // namespace evoke
