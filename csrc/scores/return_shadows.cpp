#include "return_shadows.hpp"

#include <cassert>
#include <cmath>

namespace evoke {
namespace {

constexpr double kHalfLifeRequests = 300;  // of hits: 50 flaps between sets, 1000 lags
constexpr double kLead = 1.01;
constexpr uint8_t kAll = (1 << kSets) - 1;

}  // namespace

ReturnShadows::ReturnShadows(const ReturnLearner* learner, uint64_t capacity_bytes)
    : learner_(learner),
      capacity_bytes_(capacity_bytes),
      leaves_{LeafHeaps(learner), LeafHeaps(learner), LeafHeaps(learner)} {
  for (size_t set = 0; set < kSets; ++set) leaves_[set].start(static_cast<ClassSet>(set));
}

void ReturnShadows::grow(size_t count) {
  held_.resize(count, 0);
  children_.resize(count, {});
  links_.resize(count);
}

void ReturnShadows::request(std::span<const uint32_t> ids) {
  if (ids.empty()) return;
  count_hits(ids);
  admit(ids);
  for (size_t set = 0; set < kSets; ++set) {
    const auto leaf = [this, set](uint32_t id) { return is_leaf(set, id); };
    if (is_leaf(set, ids.back())) leaves_[set].push(ids.back(), leaf);
    make_room(set, ids.back());
  }
  choose();
}

void ReturnShadows::count_hits(std::span<const uint32_t> ids) {
  static const double factor = std::exp2(-1 / kHalfLifeRequests);
  for (double& hits : hits_) hits *= factor;
  uint8_t holding = kAll;
  for (const uint32_t id : ids) {
    holding &= held_[id];
    if (!holding) break;
    for (size_t set = 0; set < kSets; ++set) hits_[set] += holding >> set & 1;
  }
}

void ReturnShadows::admit(std::span<const uint32_t> ids) {
  uint32_t before = kNoId;
  for (const uint32_t id : ids) {
    const uint8_t missing = kAll & ~held_[id];
    if (missing) {
      // Who is held keeps the parent that was counted for it.
      if (missing == kAll) {
        links_[id].parent = before;
        links_[id].parent_birth = before == kNoId ? 0 : links_[before].birth;
      }
      const uint32_t parent = parent_of(id);
      for (size_t set = 0; set < kSets; ++set) {
        if (!(missing >> set & 1)) continue;
        used_bytes_[set] += learner_->bytes(id);
        if (parent != kNoId) ++children_[parent][set];
      }
      held_[id] = kAll;
    }
    before = id;
  }
}

uint32_t ReturnShadows::parent_of(uint32_t id) const {
  const Link& link = links_[id];
  if (link.parent == kNoId || links_[link.parent].birth != link.parent_birth) return kNoId;
  return link.parent;
}

void ReturnShadows::make_room(size_t set, uint32_t newest) {
  const auto leaf = [this, set](uint32_t id) { return is_leaf(set, id); };
  uint32_t own = is_leaf(set, newest) ? newest : kNoId;
  while (used_bytes_[set] > capacity_bytes_) {
    uint32_t id = leaves_[set].worst(own, leaf);
    if (id == kNoId) return;
    const bool is_own = id == own;
    uint32_t last;
    do {
      drop(set, id);
      last = id;
      id = parent_of(id);
    } while (used_bytes_[set] > capacity_bytes_ && id != kNoId && is_leaf(set, id) &&
             learner_->are_alike(id, last));
    const bool left = id != kNoId && is_leaf(set, id);
    if (left) leaves_[set].push(id, leaf);
    if (is_own) own = left && learner_->is_newest(id) ? id : kNoId;
  }
}

void ReturnShadows::drop(size_t set, uint32_t id) {
  held_[id] &= static_cast<uint8_t>(~(1 << set));
  used_bytes_[set] -= learner_->bytes(id);
  const uint32_t parent = parent_of(id);
  if (parent == kNoId) return;
  assert(children_[parent][set] > 0);
  --children_[parent][set];
}

void ReturnShadows::forget(uint32_t id) {
  for (size_t set = 0; set < kSets; ++set) {
    if (!(held_[id] >> set & 1)) continue;
    drop(set, id);
    const uint32_t parent = parent_of(id);
    if (parent == kNoId || !is_leaf(set, parent)) continue;
    leaves_[set].push(parent, [this, set](uint32_t leaf) { return is_leaf(set, leaf); });
  }
  children_[id] = {};  // those that are left are without a parent
  ++links_[id].birth;
}

void ReturnShadows::choose() {
  for (size_t set = 0; set < kSets; ++set) {
    if (recent_hits(static_cast<ClassSet>(set)) > kLead * recent_hits(best_)) {
      best_ = static_cast<ClassSet>(set);
    }
  }
}

}  // namespace evoke
