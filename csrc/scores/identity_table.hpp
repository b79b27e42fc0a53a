// Which number an identity has, and which are remembered: 16-byte tags to dense numbers, bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../siphash.hpp"
#include "identities.hpp"

namespace evoke {

// What is remembered of an identity: its tag and its columns. What finds and ranks it comes on top:
// 8 bytes of a half-empty hash table here, and what orders keep of residents.
constexpr size_t kIdentityBytes = sizeof(Tag) + kColumnBytes;
static_assert(kIdentityBytes <= 48);

// Numbers come back when they have been given up. Tags have to be secretly keyed hashes, so that
// clients cannot make long runs.
class IdentityTable {
 public:
  explicit IdentityTable(Identities* known) : known_(*known), slots_(kSlotsLeast, {0, kNoId}) {}

  // kNoId when it is not known.
  uint32_t find(const Tag& tag) const;
  // It will be asked for soon.
  void prefetch(const Tag& tag) const { __builtin_prefetch(&slots_[print_of(tag) & mask()]); }
  // Its number; a new one knows nothing and has `bytes`. A call for one that is known counts as a
  // use for stalest(): keys that come once do not push out what comes again.
  uint32_t intern(const Tag& tag, uint32_t bytes);
  void give_up(uint32_t id);

  // Who has gone unused the longest, roughly, among those for which may_go(id): a hand goes round
  // and passes over who was used since it came by (CLOCK: Corbato, 1968). kNoId: nobody may go.
  template <typename MayGo>
  uint32_t stalest(MayGo may_go) {
    for (size_t steps = 2 * tags_.size(); steps > 0; --steps) {
      if (hand_ >= tags_.size()) hand_ = 0;
      const auto id = static_cast<uint32_t>(hand_++);
      if (!live_[id] || !may_go(id)) continue;
      if (!used_[id]) return id;
      used_[id] = 0;
    }
    return kNoId;
  }

  bool live(uint32_t id) const { return id < live_.size() && live_[id]; }
  const Tag& tag(uint32_t id) const { return tags_[id]; }
  size_t size() const { return size_; }
  // Numbers ever given out: columns have to have grown to it.
  size_t end() const { return tags_.size(); }
  // Of tags, columns and the hash table.
  size_t size_bytes() const;

 private:
  struct Slot {
    uint32_t print;  // of the tag
    uint32_t id;
  };
  static constexpr size_t kSlotsLeast = 1024;

  static uint32_t print_of(const Tag& tag) { return static_cast<uint32_t>(tag.half[0]); }
  size_t mask() const { return slots_.size() - 1; }
  size_t slot_of(const Tag& tag) const;  // where it is, or would be
  void place(Slot slot);
  uint32_t new_number();

  Identities& known_;
  std::vector<Tag> tags_;
  std::vector<uint8_t> live_;
  std::vector<uint8_t> used_;  // since the hand came by
  std::vector<uint32_t> unused_;
  std::vector<Slot> slots_;
  size_t size_ = 0;
  size_t hand_ = 0;
};

}  // namespace evoke
