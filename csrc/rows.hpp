// Where index entries live: rows in chunks that never move, a map from tags to rows, and lists of
// rows by recency. Together with the published table at most 256 bytes per resident block.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "siphash.hpp"

namespace evoke {

constexpr uint32_t kNoRow = 0xFFFFFFFF;

// What one rank stored of a block.
struct Part {
  uint64_t ref;
  uint64_t sum;
  uint32_t length_bytes;
};

enum class RowState : uint8_t {
  kDead,     // free for reuse
  kVisible,  // from insert to erase
  kErased,   // gone for everybody, but its memory is held
};

struct RecencyLinks {
  uint32_t newer = kNoRow;
  uint32_t older = kNoRow;
};
constexpr int kOfAll = 0;        // RecencyLinks in the list of all rows
constexpr int kOfNamespace = 1;  // RecencyLinks in the list of the row's namespace

struct Row {
  std::array<uint8_t, 32> key;
  Tag tag;
  union {
    uint64_t ref;  // part_count 1
    Part* parts;   // else: owned
  };
  uint64_t sum;
  uint32_t length_bytes;
  uint32_t namespace_number;
  uint32_t chain_index;
  uint32_t holds;
  uint32_t parent;
  uint32_t staying_children;
  uint32_t first_child;
  uint32_t next_sibling;
  uint32_t previous_sibling;
  RecencyLinks links[2];
  uint32_t stamp;       // equals the number of a walk when that walk has met the row
  uint32_t generation;  // rises when the row number dies
  uint16_t part_count;
  RowState state;
  uint8_t tier : 2;
  uint8_t published : 2;  // see Publisher
  bool staying : 1;       // held, or above a row that is: on another list than the rest
  uint8_t lent : 1;       // one of its holds is a lend(): it keeps its recency

  Part part(uint32_t number) const {
    assert(number < part_count);
    return part_count == 1 ? Part{ref, sum, length_bytes} : parts[number];
  }
  uint64_t bytes() const;
  bool must_stay() const { return holds > lent || staying_children > 0; }
};
static_assert(sizeof(Row) == 128);

class RowStore {
 public:
  RowStore() = default;
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;
  ~RowStore();

  Row& operator[](uint32_t row) { return chunks_[row >> kChunkBits][row & kChunkMask]; }
  const Row& operator[](uint32_t row) const { return chunks_[row >> kChunkBits][row & kChunkMask]; }
  uint32_t make();                       // a row without links; numbers come back as late as can be
  void release(uint32_t row);            // frees its parts too
  uint32_t end() const { return end_; }  // every row number is below
  bool is(uint32_t row, RowState state) const { return row < end_ && (*this)[row].state == state; }
  size_t size_bytes() const;
  void set_parts(Row& row, const Part* parts, uint16_t count);

 private:
  static constexpr uint32_t kChunkBits = 12;
  static constexpr uint32_t kChunkMask = (1u << kChunkBits) - 1;

  void free_parts(Row& row);

  std::vector<std::unique_ptr<Row[]>> chunks_;
  uint32_t end_ = 0;
  uint32_t free_first_ = kNoRow;  // a queue through links[kOfAll].newer
  uint32_t free_last_ = kNoRow;
  size_t part_bytes_ = 0;
};

// Open addressing, linear probing, without tombstones. Several rows may have one hash.
class RowMap {
 public:
  RowMap();
  // The map's own hash of a tag: its secret keeps clients, who can choose tags, from making
  // long runs.
  uint64_t hash(const Tag& tag) const { return (tag.half[0] ^ secret_[0]) * secret_[1]; }
  void insert(uint64_t hash, uint32_t row);
  void erase(uint64_t hash, uint32_t row);
  // First row with this hash for which matches(row), or kNoRow.
  template <typename Matches>
  uint32_t find(uint64_t hash, Matches matches) const {
    const auto print = static_cast<uint32_t>(hash >> 32);
    for (size_t at = home(print);; at = (at + 1) & mask_) {
      if (slots_[at].row == kNoRow) return kNoRow;
      if (slots_[at].print == print && matches(slots_[at].row)) return slots_[at].row;
    }
  }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[home(hash >> 32)]); }
  size_t size() const { return size_; }
  size_t size_bytes() const { return slots_.size() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t print;  // upper half of the hash
    uint32_t row;
  };
  size_t home(uint64_t print) const { return print & mask_; }
  void place(Slot slot);
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t size_ = 0;
  uint64_t secret_[2];
};

// Rows from the least to the most recent.
class RecencyList {
 public:
  explicit RecencyList(int which) : which_(which) {}
  void add_newest(RowStore& rows, uint32_t row);
  void remove(RowStore& rows, uint32_t row);
  void move_to_newest(RowStore& rows, uint32_t row) {
    if (row == newest_) return;
    remove(rows, row);
    add_newest(rows, row);
  }
  uint32_t oldest() const { return oldest_; }
  uint32_t newest() const { return newest_; }
  uint32_t newer(const RowStore& rows, uint32_t row) const { return rows[row].links[which_].newer; }

 private:
  int which_;
  uint32_t newest_ = kNoRow;
  uint32_t oldest_ = kNoRow;
};

void fill_random(void* at, size_t length_bytes);  // from the kernel

}  // namespace evoke
