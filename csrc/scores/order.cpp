#include "order.hpp"

#include <cassert>

namespace evoke {

void Order::grow(size_t count) {
  if (count <= flags_.size()) return;
  flags_.resize(count, 0);
  parents_.resize(count, kNoId);
  children_.resize(count, 0);
}

void Order::set_flags(uint32_t id, uint8_t flags) {
  const bool before = is_candidate(id);
  if (before && flags != kResident) {
    --candidates_;
    exit(id);
  }
  flags_[id] = flags;
  if (!before && is_candidate(id)) {
    ++candidates_;
    enter(id);
  }
}

void Order::add_children(uint32_t id, int32_t change) {
  if (id == kNoId) return;
  const bool before = is_candidate(id);
  const uint32_t children = children_[id] + static_cast<uint32_t>(change);
  if (before && children != 0) {
    --candidates_;
    exit(id);
  }
  children_[id] = children;
  if (!before && is_candidate(id)) {
    ++candidates_;
    enter(id);
  }
}

void Order::admit(uint32_t id, uint32_t parent) {
  assert(!resident(id));
  // The parent first: it must not be a candidate any more when its child is one.
  parents_[id] = parent;
  add_children(parent, 1);
  ++residents_;
  set_flags(id, flags_[id] | kResident);
}

void Order::leave(uint32_t id) {
  assert(resident(id));
  --residents_;
  set_flags(id, 0);
  on_leave(id);
  add_children(parents_[id], -1);
  parents_[id] = kNoId;
}

void Order::set_parent(uint32_t id, uint32_t parent) {
  assert(resident(id));
  add_children(parents_[id], -1);
  parents_[id] = parent;
  add_children(parent, 1);
}

void Order::hold(uint32_t id) { set_flags(id, flags_[id] | kHeld); }

void Order::unhold(uint32_t id) { set_flags(id, flags_[id] & static_cast<uint8_t>(~kHeld)); }

void Order::choose(uint32_t id, bool gone) {
  set_flags(id, flags_[id] | kChosen);
  if (gone) add_children(parents_[id], -1);
}

void Order::unchoose(uint32_t id, bool gone) {
  if (gone) add_children(parents_[id], 1);
  set_flags(id, flags_[id] & static_cast<uint8_t>(~kChosen));
}

std::vector<uint32_t> Order::victims(size_t count, double clock) {
  std::vector<uint32_t> chosen;
  while (chosen.size() < count) {
    const uint32_t id = worst(clock);
    if (id == kNoId) break;
    chosen.push_back(id);
    choose(id);
  }
  for (size_t i = chosen.size(); i-- > 0;) unchoose(chosen[i]);
  return chosen;
}

bool Order::refuses(uint32_t, double) { return false; }

}  // namespace evoke
