#include "catalog.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <unordered_map>

namespace evoke {
namespace {

// Tells a slot's blocks apart in half the bytes: both the epoch and the counter count.
uint32_t mark_of(uint64_t generation) {
  return static_cast<uint32_t>((generation * 0x9E3779B97F4A7C15U) >> 32);
}

}  // namespace

Catalog::Catalog(uint32_t segments, uint64_t segment_bytes)
    : segment_bytes_(segment_bytes), segments_(segments) {
  if (getrandom(secret_.data(), sizeof secret_, 0) != sizeof secret_) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  secret_[1] |= 1;
}

bool Catalog::is_live(uint32_t slot) const {
  if (segment_of(slot) >= segments_.size()) return false;
  const Segment& segment = segments_[segment_of(slot)];
  return index_of(slot) < segment.slots &&
         segment.entries[index_of(slot)].state == SlotState::kLive;
}

uint64_t Catalog::offset_of(uint32_t slot) const {
  return index_of(slot) * segments_[segment_of(slot)].slot_bytes;
}

// ------------------------------------------------------------------ places

bool Catalog::carve(uint32_t number, uint64_t slot_bytes) {
  if (number >= segments_.size() || slot_bytes == 0 || slot_bytes > segment_bytes_) return false;
  Segment& segment = segments_[number];
  if (segment.used > 0) return false;
  if (segment.slots > 0) roomy_[segment.slot_bytes].erase(number);
  segment = {};
  segment.slot_bytes = slot_bytes;
  segment.slots =
      static_cast<uint32_t>(std::min<uint64_t>(segment_bytes_ / slot_bytes, kSegmentSlotsMax));
  segment.entries.resize(segment.slots);
  segment.free.assign((segment.slots + 63) / 64, ~uint64_t{0});
  if (segment.slots % 64 != 0) segment.free.back() = (uint64_t{1} << segment.slots % 64) - 1;
  roomy_[slot_bytes].insert(number);
  return true;
}

uint32_t Catalog::take(uint64_t slot_bytes, uint32_t ready, uint32_t* carved) {
  *carved = kNoSlot;
  std::set<uint32_t>& roomy = roomy_[slot_bytes];
  if (roomy.empty() || *roomy.begin() >= ready) {
    const uint32_t end = std::min(ready, segments());
    uint32_t number = first_uncarved_;
    while (number < end && segments_[number].slots > 0) number++;
    first_uncarved_ = number;
    // Segments that another size left empty are as good as new.
    if (number >= end) {
      number = 0;
      while (number < end && segments_[number].used > 0) number++;
    }
    if (number >= end || !carve(number, slot_bytes)) return kNoSlot;
    *carved = number;
  }
  const uint32_t number = *roomy.begin();
  Segment& segment = segments_[number];
  while (segment.free[segment.first_free_word] == 0) segment.first_free_word++;
  const auto bit = static_cast<uint32_t>(std::countr_zero(segment.free[segment.first_free_word]));
  const uint32_t slot = slot_number(number, segment.first_free_word * 64 + bit);
  [[maybe_unused]] const bool taken = take_at(slot);
  assert(taken);
  return slot;
}

bool Catalog::take_at(uint32_t slot) {
  if (segment_of(slot) >= segments_.size()) return false;
  Segment& segment = segments_[segment_of(slot)];
  const uint32_t index = index_of(slot);
  if (index >= segment.slots || segment.entries[index].state != SlotState::kFree) return false;
  segment.free[index / 64] &= ~(uint64_t{1} << index % 64);
  segment.entries[index] = SlotEntry{};
  segment.entries[index].state = SlotState::kTaken;
  segment.used++;
  if (!has_free(segment)) roomy_[segment.slot_bytes].erase(segment_of(slot));
  return true;
}

void Catalog::give_back(uint32_t slot) {
  Segment& segment = segments_[segment_of(slot)];
  const uint32_t index = index_of(slot);
  assert(segment.entries[index].state != SlotState::kFree);
  segment.entries[index].state = SlotState::kFree;
  segment.entries[index].generation = 0;
  segment.free[index / 64] |= uint64_t{1} << index % 64;
  segment.first_free_word = std::min(segment.first_free_word, index / 64);
  segment.used--;
  roomy_[segment.slot_bytes].insert(segment_of(slot));
}

// ------------------------------------------------------------------ blocks

uint64_t Catalog::hash(const uint8_t* key) const {
  uint64_t word = 0;  // keys are hashes themselves
  std::memcpy(&word, key, sizeof word);
  return (word ^ secret_[0]) * secret_[1];
}

uint64_t Catalog::hash_of(uint32_t slot) const { return hash((*this)[slot].key.data()); }

void Catalog::commit(uint32_t slot, uint32_t parent) {
  SlotEntry& entry = (*this)[slot];
  assert(entry.state == SlotState::kTaken && entry.generation != 0);
  entry.state = SlotState::kLive;
  entry.parent = kNoSlot;
  map_.insert(slot, [this](uint32_t other) { return hash_of(other); });
  segments_[segment_of(slot)].live++;
  blocks_++;
  block_bytes_ += entry.length_bytes;
  link(slot, parent);
  if (parent != kNoSlot) set_parent(slot, parent);
}

void Catalog::erase(uint32_t slot) {
  SlotEntry& entry = (*this)[slot];
  assert(entry.state == SlotState::kLive);
  const uint32_t parent = parent_of(slot);
  if (parent != kNoSlot && (*this)[parent].children != kManyChildren) (*this)[parent].children--;
  map_.erase(slot, [this](uint32_t other) { return hash_of(other); });
  unlink(slot);
  segments_[segment_of(slot)].live--;
  blocks_--;
  block_bytes_ -= entry.length_bytes;
  entry.state = SlotState::kErased;
  if (entry.reads == 0) give_back(slot);
}

void Catalog::end_read(uint32_t slot) {
  SlotEntry& entry = (*this)[slot];
  assert(entry.reads > 0);
  if (--entry.reads == 0 && entry.state == SlotState::kErased) give_back(slot);
}

uint32_t Catalog::find(uint16_t namespace_number, const uint8_t* key) const {
  return map_.find(hash(key), [&](uint32_t slot) {
    const SlotEntry& entry = (*this)[slot];
    return entry.namespace_number == namespace_number &&
           std::memcmp(entry.key.data(), key, entry.key.size()) == 0;
  });
}

uint32_t Catalog::find_half(uint16_t namespace_number, const uint8_t* half,
                            uint32_t chain_index) const {
  return map_.find(hash(half), [&](uint32_t slot) {
    const SlotEntry& entry = (*this)[slot];
    return entry.namespace_number == namespace_number && entry.chain_index == chain_index &&
           std::memcmp(entry.key.data(), half, entry.key.size() / 2) == 0;
  });
}

// ------------------------------------------------------------------ chains and recency

uint32_t Catalog::parent_of(uint32_t slot) const {
  const SlotEntry& entry = (*this)[slot];
  if (entry.parent == kNoSlot || !is_live(entry.parent)) return kNoSlot;
  const bool same = mark_of((*this)[entry.parent].generation) == entry.parent_mark;
  return same ? entry.parent : kNoSlot;
}

void Catalog::set_parent(uint32_t slot, uint32_t parent) {
  SlotEntry& entry = (*this)[slot];
  SlotEntry& above = (*this)[parent];
  // The chain index rises by one with each link, so that links have no cycle.
  if (parent_of(slot) != kNoSlot || entry.namespace_number != above.namespace_number) return;
  if (entry.chain_index != uint64_t{above.chain_index} + 1) return;
  entry.parent = parent;
  entry.parent_mark = mark_of(above.generation);
  if (above.children != kManyChildren) above.children++;
}

void Catalog::link(uint32_t slot, uint32_t older_than) {
  SlotEntry& entry = (*this)[slot];
  entry.newer = older_than;
  entry.older = older_than == kNoSlot ? newest_ : (*this)[older_than].older;
  (entry.newer == kNoSlot ? newest_ : (*this)[entry.newer].older) = slot;
  (entry.older == kNoSlot ? oldest_ : (*this)[entry.older].newer) = slot;
}

void Catalog::unlink(uint32_t slot) {
  const SlotEntry& entry = (*this)[slot];
  (entry.newer == kNoSlot ? newest_ : (*this)[entry.newer].older) = entry.older;
  (entry.older == kNoSlot ? oldest_ : (*this)[entry.older].newer) = entry.newer;
}

void Catalog::touch(std::span<const uint32_t> slots) {
  const auto renew = [this](uint32_t slot) {
    if (slot == newest_) return;
    unlink(slot);
    link(slot, kNoSlot);
  };
  for (size_t i = slots.size(); i-- > 0;) {
    renew(slots[i]);
    // Where the next one is the parent, its turn comes; else all ancestors follow now.
    for (uint32_t above = parent_of(slots[i]); above != kNoSlot; above = parent_of(above)) {
      if (i > 0 && above == slots[i - 1]) break;
      renew(above);
    }
  }
}

std::vector<uint32_t> Catalog::victims(size_t count, uint64_t bytes, uint64_t slot_bytes) const {
  std::vector<uint32_t> chosen;
  std::unordered_map<uint32_t, uint32_t> gone;  // children that are among the chosen
  uint64_t chosen_bytes = 0;
  for (uint32_t slot = oldest_; slot != kNoSlot; slot = (*this)[slot].newer) {
    if (chosen.size() >= count && chosen_bytes >= bytes) break;
    const SlotEntry& entry = (*this)[slot];
    const auto children = gone.find(slot);
    const uint32_t left = entry.children - (children == gone.end() ? 0 : children->second);
    if (left > 0 || entry.reads > 0) continue;
    const uint32_t parent = parent_of(slot);
    const uint64_t place_bytes = segments_[segment_of(slot)].slot_bytes;
    if (slot_bytes != 0 && place_bytes != slot_bytes) continue;
    if (parent != kNoSlot) gone[parent]++;
    chosen.push_back(slot);
    chosen_bytes += place_bytes;
  }
  return chosen;
}

std::vector<uint32_t> Catalog::live_slots() const {
  std::vector<uint32_t> slots;
  slots.reserve(blocks_);
  for (uint32_t slot = oldest_; slot != kNoSlot; slot = (*this)[slot].newer) slots.push_back(slot);
  return slots;
}

}  // namespace evoke
