// Between the index and an order: rows and keys become identities, what happens to rows is told to
// the order, and what the order chooses becomes rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../changes.hpp"
#include "identity_table.hpp"
#include "order.hpp"

namespace evoke {

constexpr uint32_t kNoRow = 0xFFFFFFFF;

struct RankerRules {
  uint32_t tier = 1;               // whose rows are ranked
  double remembered_factor = 8;    // identities, as a multiple of the most rows there have been
  size_t remembered_least = 4096;  // whatever the factor says
  bool keep_state = true;          // what was learned survives eviction
};

struct Room {
  std::vector<uint32_t> rows;  // to give up, worst first
  size_t refused = 0;          // newcomers, from the last
  bool is_short = false;       // too many of other namespaces had to be passed over
};

// Keys are packed, 32 bytes each. Clocks are in the unit that scores age in. Wrong arguments are
// the caller's bug (assert): rows and spaces are those of the index.
class Ranker {
 public:
  // Scores are weighted ones of `known`.
  Ranker(Identities* known, Scores* scores, const RankerRules& rules);

  // From now on. It starts empty, and belongs to the same identities.
  void use(Order* order);
  void set_rules(const RankerRules& rules);
  // Scores at `clock` stay; next: what the clock reads from now on.
  void rescale(double alpha, double clock, double next);

  // How keys of a namespace are hashed, and how large its blocks are.
  void set_space(uint32_t number, const TagSecret& secret, uint32_t block_bytes);
  // What the index noted. A stored block that no request asked for counts as an access.
  void apply(std::span<const Change> changes, std::span<const uint8_t> keys, double clock);
  // A request asked for the blocks of these keys, in chain order. Accesses are noted from the last
  // to the first.
  void asked(uint32_t space, std::span<const uint8_t> keys, double clock, double now_s);
  // An access of these rows, in chain order, that no request will report; their ancestors become
  // as recent.
  void used(std::span<const uint32_t> rows, double clock);

  // Whom to give up until there are `count` and `bytes_wanted`; fewer when no more may leave.
  // space: only of this namespace, or -1. newcomers: keys of the blocks that need the room, in
  // chain order and all of one namespace; where the order would rather not have the last of them,
  // it is refused and less room is needed. Chooses only.
  Room make_room(size_t count, uint64_t bytes_wanted, int64_t space, uint32_t newcomers_space,
                 std::span<const uint8_t> newcomers, double clock);

  const IdentityTable& table() const { return table_; }
  IdentityTable& table() { return table_; }
  Identities& known() { return known_; }
  const Identities& known() const { return known_; }
  const Scores& scores() const { return scores_; }
  const Order* order() const { return order_; }
  uint32_t id_of(uint32_t row) const { return row < rows_.size() ? rows_[row].id : kNoId; }
  uint32_t parent_of(uint32_t row) const { return rows_[row].parent; }
  bool held(uint32_t row) const { return rows_[row].held; }
  size_t rows() const { return count_; }
  size_t rows_most() const { return count_most_; }
  // As many as a daemon before had: what is remembered is bounded by it.
  void expect_rows(size_t count) { count_most_ = std::max(count_most_, count); }
  size_t limit() const;
  uint32_t next_seq() { return ++seq_; }
  // Columns for all identities, and none too many remembered.
  void grow();
  void trim();
  // Tests: as if so many accesses had been.
  void set_seq(uint32_t seq) { seq_ = seq; }

 private:
  struct Place {
    uint32_t id = kNoId;
    uint32_t parent = kNoRow;
    uint32_t space = 0;
    bool held = false;
    bool ranked = false;  // resident in the order
  };
  struct Space {
    TagSecret secret{};
    uint32_t block_bytes = 1;
  };

  void note(const Change& change, double clock);
  void store(const Change& change, std::span<const uint8_t> key);
  void settle(double clock);
  void admit(uint32_t row, double clock);
  void erase(uint32_t row);
  void rank(uint32_t row);
  void unrank(uint32_t row);
  void touch(uint32_t id, double clock);
  void freshen_ancestors(uint32_t row, uint32_t until, uint32_t before, double clock);
  bool is_ranked(uint32_t id) const {
    return order_ && id < order_->size() && order_->resident(id);
  }
  std::vector<uint32_t> intern_all(uint32_t space, std::span<const uint8_t> keys);
  void renumber_when_due();

  Identities& known_;
  Scores& scores_;
  RankerRules rules_;
  IdentityTable table_;
  Order* order_ = nullptr;
  std::vector<Space> spaces_;
  std::vector<Place> rows_;
  std::vector<uint32_t> row_of_;     // by identity
  std::vector<uint8_t> awaited_;     // by identity: asked for, and not stored since
  std::vector<uint32_t> asked_in_;   // by identity: number of the request
  std::vector<uint32_t> unsettled_;  // rows that are stored and not ranked yet
  size_t count_ = 0;
  size_t count_most_ = 0;
  uint32_t requests_ = 0;
  uint32_t seq_ = 0;
};

}  // namespace evoke
