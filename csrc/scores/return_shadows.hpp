// Three caches that hold no bytes: what each set of classes would have had, and so which is best.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "leaf_heaps.hpp"
#include "return_learner.hpp"

namespace evoke {

class ReturnShadows {
 public:
  ReturnShadows(const ReturnLearner* learner, uint64_t capacity_bytes);

  void grow(size_t count);
  void resize(uint64_t capacity_bytes) { capacity_bytes_ = capacity_bytes; }
  // A request for these blocks in chain order, which the learner has filed.
  void request(std::span<const uint32_t> ids);
  // To be told before the learner; the number may come back as another block.
  void forget(uint32_t id);

  // The set with the most prefix hits of late; changes only for a lead.
  ClassSet best() const { return best_; }
  double recent_hits(ClassSet set) const { return hits_[static_cast<size_t>(set)]; }
  bool holds(ClassSet set, uint32_t id) const { return held_[id] >> static_cast<int>(set) & 1; }

 private:
  // A parent that was forgotten has another birth.
  struct Link {
    uint32_t parent = kNoId;
    uint32_t parent_birth = 0;
    uint32_t birth = 0;
  };

  bool is_leaf(size_t set, uint32_t id) const {
    return (held_[id] >> set & 1) && children_[id][set] == 0;
  }
  void count_hits(std::span<const uint32_t> ids);
  void admit(std::span<const uint32_t> ids);
  void make_room(size_t set, uint32_t newest);
  uint32_t parent_of(uint32_t id) const;
  void drop(size_t set, uint32_t id);
  void choose();

  const ReturnLearner* learner_;
  uint64_t capacity_bytes_;
  std::vector<uint8_t> held_;                          // a bit for each set
  std::vector<std::array<uint32_t, kSets>> children_;  // held ones
  std::vector<Link> links_;
  std::array<uint64_t, kSets> used_bytes_{};
  std::array<LeafHeaps, kSets> leaves_;
  std::array<double, kSets> hits_{};  // leading blocks held, of late
  ClassSet best_ = ClassSet::kAge;
};

}  // namespace evoke
