// Which slot of a flash directory holds which block, and who is to leave first.
//
// At most 128 bytes of memory for each block, its entry in the published look-up table included.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "format.hpp"
#include "slot_map.hpp"

namespace evoke {

constexpr uint32_t kNoSlot = 0xFFFFFFFF;
constexpr uint32_t kSegmentSlotsMax = 1 << 16;
constexpr uint32_t kSegmentsMax = 0xFFFF;

// A slot's number: its segment and its place there.
constexpr uint32_t slot_number(uint32_t segment, uint32_t index) { return segment << 16 | index; }
constexpr uint32_t segment_of(uint32_t slot) { return slot >> 16; }
constexpr uint32_t index_of(uint32_t slot) { return slot & 0xFFFF; }

enum class SlotState : uint8_t {
  kFree,
  kTaken,   // being written: nobody can find it
  kLive,    // from the end of its write to its removal
  kErased,  // gone for everybody, but being read
};

struct SlotEntry {
  Key key;
  uint64_t sum;
  uint64_t generation;
  uint32_t length_bytes;
  uint32_t chain_index;
  uint32_t parent;  // a slot; the parent only while its generation has that mark
  uint32_t parent_mark;
  uint32_t newer, older;
  uint16_t namespace_number;
  uint16_t parts;
  uint16_t children;  // kManyChildren: so many that nobody counts any more; it stays
  uint8_t reads;      // under way
  SlotState state : 7;
  bool verified : 1;  // written or read by this process
};
static_assert(sizeof(SlotEntry) == 80);
constexpr uint16_t kManyChildren = 0xFFFF;

struct Segment {
  uint64_t slot_bytes = 0;  // 0: not carved yet
  uint32_t slots = 0;
  uint32_t used = 0;  // not free
  uint32_t live = 0;
  std::vector<SlotEntry> entries{};
  std::vector<uint64_t> free{};  // bit set: the slot is free
  uint32_t first_free_word = 0;
};

struct CatalogStats {
  uint64_t segments, segments_carved, slots, slots_used, blocks, block_bytes, memory_bytes;
};

// Owned by one thread.
class Catalog {
 public:
  Catalog(uint32_t segments, uint64_t segment_bytes);

  SlotEntry& operator[](uint32_t slot) {
    return segments_[segment_of(slot)].entries[index_of(slot)];
  }
  const SlotEntry& operator[](uint32_t slot) const {
    return segments_[segment_of(slot)].entries[index_of(slot)];
  }
  bool is_live(uint32_t slot) const;
  const Segment& segment(uint32_t number) const { return segments_[number]; }
  uint32_t segments() const { return static_cast<uint32_t>(segments_.size()); }
  uint64_t offset_of(uint32_t slot) const;

  // Gives an empty segment to slots of slot_bytes. False when that cannot be.
  bool carve(uint32_t segment, uint64_t slot_bytes);
  // A free slot, or kNoSlot. Its segment must be below `ready`. *carved: a segment that was carved
  // for it, or kNoSlot.
  uint32_t take(uint64_t slot_bytes, uint32_t ready, uint32_t* carved);
  bool take_at(uint32_t slot);  // that very one; false when there is no such free slot
  void give_back(uint32_t slot);

  // A taken slot becomes live, the most recent but for its parent (if that is live).
  void commit(uint32_t slot, uint32_t parent);
  // A live slot disappears; it is given back when it is not being read.
  void erase(uint32_t slot);
  void end_read(uint32_t slot);

  uint32_t find(uint16_t namespace_number, const uint8_t* key) const;
  // By the first half of its key, with that chain index.
  uint32_t find_half(uint16_t namespace_number, const uint8_t* half, uint32_t chain_index) const;
  void set_parent(uint32_t slot, uint32_t parent);
  uint32_t parent_of(uint32_t slot) const;
  // Afterwards the first is the most recent but for its ancestors, and so on.
  void touch(std::span<const uint32_t> slots);
  // Least recent slots that nobody reads and that have no live child (counting earlier victims as
  // gone), until count and bytes are reached. slot_bytes: only of that size; 0: any.
  std::vector<uint32_t> victims(size_t count, uint64_t bytes, uint64_t slot_bytes) const;
  std::vector<uint32_t> live_slots() const;  // from the least recent
  CatalogStats stats() const;
  void check() const;  // walks everything; std::logic_error says what is wrong

 private:
  uint64_t hash(const uint8_t* key) const;
  uint64_t hash_of(uint32_t slot) const;
  void link(uint32_t slot, uint32_t older_than);  // kNoSlot: as the most recent
  void unlink(uint32_t slot);
  bool has_free(const Segment& segment) const { return segment.used < segment.slots; }

  uint64_t segment_bytes_;
  std::vector<Segment> segments_;
  std::map<uint64_t, std::set<uint32_t>> roomy_;  // slot bytes -> segments with a free slot
  SlotMap map_;
  std::array<uint64_t, 2> secret_{};  // keeps clients, who choose keys, from making long runs
  uint32_t newest_ = kNoSlot;
  uint32_t oldest_ = kNoSlot;
  uint32_t first_uncarved_ = 0;
  uint64_t blocks_ = 0;
  uint64_t block_bytes_ = 0;
};

}  // namespace evoke
