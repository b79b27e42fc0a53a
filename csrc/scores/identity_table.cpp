#include "identity_table.hpp"

#include <cassert>

namespace evoke {

size_t IdentityTable::slot_of(const Tag& tag) const {
  const uint32_t print = print_of(tag);
  size_t at = print & mask();
  while (slots_[at].id != kNoId && !(slots_[at].print == print && tags_[slots_[at].id] == tag)) {
    at = (at + 1) & mask();
  }
  return at;
}

uint32_t IdentityTable::find(const Tag& tag) const { return slots_[slot_of(tag)].id; }

void IdentityTable::place(Slot slot) {
  size_t at = slot.print & mask();
  while (slots_[at].id != kNoId) at = (at + 1) & mask();
  slots_[at] = slot;
}

uint32_t IdentityTable::new_number() {
  if (!unused_.empty()) {
    const uint32_t id = unused_.back();
    unused_.pop_back();
    return id;
  }
  const auto id = static_cast<uint32_t>(tags_.size());
  tags_.emplace_back();
  live_.push_back(0);
  used_.push_back(0);
  known_.grow(tags_.size());
  return id;
}

uint32_t IdentityTable::intern(const Tag& tag, uint32_t bytes) {
  size_t at = slot_of(tag);
  if (slots_[at].id != kNoId) {
    used_[slots_[at].id] = 1;
    return slots_[at].id;
  }
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<Slot> old(2 * slots_.size(), {0, kNoId});
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.id != kNoId) place(slot);
    }
    at = slot_of(tag);
  }
  const uint32_t id = new_number();
  slots_[at] = {print_of(tag), id};
  tags_[id] = tag;
  live_[id] = 1;
  used_[id] = 0;
  known_.clear(id);
  known_.bytes[id] = bytes;
  ++size_;
  return id;
}

void IdentityTable::give_up(uint32_t id) {
  assert(live(id));
  size_t hole = slot_of(tags_[id]);
  assert(slots_[hole].id == id);
  // Who probed past the hole moves into it, so that no search ends there too early.
  for (size_t at = (hole + 1) & mask(); slots_[at].id != kNoId; at = (at + 1) & mask()) {
    const size_t home = slots_[at].print & mask();
    if (((at - home) & mask()) < ((at - hole) & mask())) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = {0, kNoId};
  live_[id] = 0;
  unused_.push_back(id);
  --size_;
}

size_t IdentityTable::size_bytes() const {
  return tags_.size() * (kIdentityBytes + sizeof(live_[0]) + sizeof(used_[0])) +
         slots_.size() * sizeof(Slot) + unused_.capacity() * sizeof(unused_[0]);
}

}  // namespace evoke
