#include <stdexcept>
#include <string>
#include <unordered_map>

#include "catalog.hpp"

namespace evoke {
namespace {

void require(bool holds, const char* what, uint64_t number) {
  if (!holds) throw std::logic_error(std::string(what) + " " + std::to_string(number));
}

}  // namespace

CatalogStats Catalog::stats() const {
  CatalogStats stats{};
  stats.segments = segments_.size();
  for (const Segment& segment : segments_) {
    stats.segments_carved += segment.slots > 0 ? 1 : 0;
    stats.slots += segment.slots;
    stats.slots_used += segment.used;
    stats.memory_bytes += segment.entries.capacity() * sizeof(SlotEntry) +
                          segment.free.capacity() * sizeof(uint64_t) + sizeof(Segment);
  }
  stats.blocks = blocks_;
  stats.block_bytes = block_bytes_;
  stats.memory_bytes += map_.size_bytes();
  return stats;
}

void Catalog::check() const {
  uint64_t live = 0;
  std::unordered_map<uint32_t, uint32_t> children;
  for (uint32_t number = 0; number < segments(); number++) {
    const Segment& segment = segments_[number];
    uint32_t used = 0;
    for (uint32_t index = 0; index < segment.slots; index++) {
      const uint32_t slot = slot_number(number, index);
      const SlotEntry& entry = segment.entries[index];
      const bool is_free = (segment.free[index / 64] >> index % 64 & 1) != 0;
      require(is_free == (entry.state == SlotState::kFree), "the free bit lies: slot", slot);
      used += is_free ? 0 : 1;
      if (entry.state != SlotState::kLive) continue;
      live++;
      require(find(entry.namespace_number, entry.key.data()) == slot, "cannot be found: slot",
              slot);
      if (parent_of(slot) != kNoSlot) children[parent_of(slot)]++;
    }
    require(used == segment.used, "wrong count of used slots: segment", number);
  }
  for (uint32_t slot : live_slots()) {
    const uint16_t counted = (*this)[slot].children;
    require(counted == kManyChildren || counted == children[slot], "wrong children: slot", slot);
  }
  require(live == blocks_ && live == live_slots().size(), "wrong number of blocks:", live);
  require(map_.size() == blocks_, "wrong number of keys:", map_.size());
}

}  // namespace evoke
