// A map from hashes to slots that keeps nothing but the slots: 4 bytes each at most 3/4 full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace evoke {

// Open addressing, linear probing, without tombstones. hash_of(slot) gives a slot's hash again; it
// must not change while the slot is in the map. Several slots may have one hash.
class SlotMap {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  template <typename HashOf>
  void insert(uint32_t slot, HashOf hash_of) {
    if (slots_.empty() || (size_ + 1) * 4 > slots_.size() * 3) grow(hash_of);
    place(slot, hash_of(slot));
    size_++;
  }
  template <typename HashOf>
  void erase(uint32_t slot, HashOf hash_of) {
    size_t hole = home(hash_of(slot));
    while (slots_[hole] != slot) hole = next(hole);
    // What follows moves up unless it would come before its home.
    for (size_t at = next(hole); slots_[at] != kNone; at = next(at)) {
      const size_t wants = home(hash_of(slots_[at]));
      if (((at - wants) & mask()) < ((at - hole) & mask())) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = kNone;
    size_--;
  }
  // The first slot for which matches(slot), or kNone.
  template <typename Matches>
  uint32_t find(uint64_t hash, Matches matches) const {
    if (slots_.empty()) return kNone;
    for (size_t at = home(hash); slots_[at] != kNone; at = next(at)) {
      if (matches(slots_[at])) return slots_[at];
    }
    return kNone;
  }
  size_t size() const { return size_; }
  size_t size_bytes() const { return slots_.size() * sizeof(uint32_t); }

 private:
  size_t mask() const { return slots_.size() - 1; }
  size_t home(uint64_t hash) const { return hash >> 32 & mask(); }
  size_t next(size_t at) const { return (at + 1) & mask(); }
  void place(uint32_t slot, uint64_t hash) {
    size_t at = home(hash);
    while (slots_[at] != kNone) at = next(at);
    slots_[at] = slot;
  }
  template <typename HashOf>
  void grow(HashOf hash_of) {
    const std::vector<uint32_t> old = std::exchange(
        slots_, std::vector<uint32_t>(slots_.empty() ? 64 : 2 * slots_.size(), kNone));
    for (const uint32_t slot : old) {
      if (slot != kNone) place(slot, hash_of(slot));
    }
  }

  std::vector<uint32_t> slots_;  // a power of two of them
  size_t size_ = 0;
};

}  // namespace evoke
