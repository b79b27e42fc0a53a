// A 4-ary heap of identities with places, ordered by rank, smallest first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "identities.hpp"

namespace evoke {

// One integer, so that a comparison is two instructions and no branch. 96 bits of it are used.
__extension__ using HeapRank = unsigned __int128;

// Smaller value first, of equals the smaller seq. -0 and 0 are equal; value is no NaN.
inline HeapRank rank_of(double value, uint32_t seq) {
  const auto bits = std::bit_cast<uint64_t>(value + 0.0);
  constexpr uint64_t kSign = uint64_t{1} << 63;
  return HeapRank{bits & kSign ? ~bits : bits | kSign} << 32 | seq;
}

// Entries may be stale on the low side: a rank that has risen since is settled when it comes to the
// top. So a touch, which only raises ranks, costs nothing here.
class LazyHeap {
 public:
  void grow(size_t count) { places_.resize(count, kNone); }
  bool contains(uint32_t id) const { return places_[id] != kNone; }

  void push(uint32_t id, HeapRank rank) {
    if (has_hole_) {
      has_hole_ = false;
      sink(0, rank << 32 | id);
      return;
    }
    if (count_ + kWays > kWays * lines_.size()) lines_.resize(2 * lines_.size() + 2);
    up(count_++, rank << 32 | id);
  }
  void remove(uint32_t id) {
    fill_hole();
    const size_t at = places_[id];
    places_[id] = kNone;
    if (at == 0) {
      has_hole_ = true;  // who is pushed next may as well begin here
    } else if (const Entry last = entry(--count_); id_of(last) != id) {
      sink(at, last);
    }
  }
  // current(id): the true rank, never below the one pushed.
  template <typename Current>
  uint32_t top(Current current) {
    fill_hole();
    while (count_ > 0) {
      const Entry first = entry(0);
      const HeapRank rank = current(id_of(first));
      if (!(first >> 32 < rank)) return id_of(first);
      sink(0, rank << 32 | id_of(first));
    }
    return kNoId;
  }
  // Empties the heap; who was in it.
  std::vector<uint32_t> take_ids() {
    fill_hole();
    std::vector<uint32_t> ids;
    for (size_t at = 0; at < count_; ++at) {
      ids.push_back(id_of(entry(at)));
      places_[ids.back()] = kNone;
    }
    count_ = 0;
    return ids;
  }

 private:
  using Entry = HeapRank;  // rank above, id in the low 32 bits
  static constexpr size_t kWays = 4;
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  struct alignas(64) Line {
    Entry entries[kWays];
  };

  static size_t below(Entry a, Entry b) {
    size_t is_below = a < b;
    asm("" : "+r"(is_below));  // or the compiler makes a branch of it
    return is_below;
  }
  static uint32_t id_of(Entry entry) { return static_cast<uint32_t>(entry); }
  // The root is the last of the first line, so that the children of each fill one line.
  Entry& entry(size_t at) {
    return lines_[(at + kWays - 1) / kWays].entries[(at + kWays - 1) % kWays];
  }
  void put(size_t at, Entry given) {
    entry(at) = given;
    places_[id_of(given)] = static_cast<uint32_t>(at);
  }
  void fill_hole() {
    if (!has_hole_) return;
    has_hole_ = false;
    if (--count_ > 0) sink(0, entry(count_));
  }
  void up(size_t at, Entry given) {
    while (at > 0) {
      const size_t above = (at - 1) / kWays;
      if (!(given < entry(above))) break;
      put(at, entry(above));
      at = above;
    }
    put(at, given);
  }
  // Into the hole at `at`. Who sinks has mostly a high rank: the hole goes to the bottom without
  // asking, and the entry rises from there.
  void sink(size_t at, Entry given) {
    for (size_t first; (first = at * kWays + 1) + kWays <= count_;) {
      const Entry* of = lines_[at + 1].entries;
      if (first + kWays < lines_.size()) {
        for (size_t i = 1; i <= kWays; ++i) __builtin_prefetch(&lines_[first + i]);
      }
      // Arithmetic in place of branches, which would be guesses.
      const size_t left = below(of[1], of[0]);
      const size_t right = 2 + below(of[3], of[2]);
      const size_t least = left + ((right - left) & -below(of[right], of[left]));
      put(at, of[least]);
      at = first + least;
    }
    if (const size_t first = at * kWays + 1; first < count_) {
      size_t least = first;
      for (size_t i = first + 1; i < count_; ++i) {
        if (entry(i) < entry(least)) least = i;
      }
      put(at, entry(least));
      at = least;
    }
    up(at, given);
  }

  std::vector<Line> lines_;
  size_t count_ = 0;
  bool has_hole_ = false;  // at the root, whose entry is gone
  std::vector<uint32_t> places_;
};

}  // namespace evoke
