// A 4-ary heap of identities with places, ordered by (key, seq), smallest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "identities.hpp"

namespace evoke {

// Entries may be stale on the low side: a key that has risen since is settled when it comes to the
// top. So a touch, which only raises keys, costs nothing here.
template <typename Key>
class LazyHeap {
 public:
  struct Entry {
    Key key;
    uint32_t id;
  };

  void grow(size_t count) { places_.resize(count, kNone); }
  bool contains(uint32_t id) const { return places_[id] != kNone; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  void push(uint32_t id, Key key) {
    entries_.push_back({key, id});
    up(entries_.size() - 1, {key, id});
  }
  void remove(uint32_t id) {
    const size_t at = places_[id];
    places_[id] = kNone;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (last.id == id) return;
    if (at > 0 && last.key < entries_[(at - 1) / kWays].key) {
      up(at, last);
    } else {
      down(at, last);
    }
  }
  // current(id): the true key, never below the one pushed.
  template <typename Current>
  uint32_t top(Current current) {
    while (!entries_.empty()) {
      const uint32_t id = entries_[0].id;
      const Key key = current(id);
      if (!(entries_[0].key < key)) return id;
      down(0, {key, id});
    }
    return kNoId;
  }
  // Empties the heap; who was in it.
  std::vector<uint32_t> take_ids() {
    std::vector<uint32_t> ids;
    for (const Entry& entry : entries_) {
      ids.push_back(entry.id);
      places_[entry.id] = kNone;
    }
    entries_.clear();
    return ids;
  }

 private:
  static constexpr size_t kWays = 4;
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  void put(size_t at, const Entry& entry) {
    entries_[at] = entry;
    places_[entry.id] = static_cast<uint32_t>(at);
  }
  void up(size_t at, const Entry& entry) {
    while (at > 0) {
      const size_t above = (at - 1) / kWays;
      if (!(entry.key < entries_[above].key)) break;
      put(at, entries_[above]);
      at = above;
    }
    put(at, entry);
  }
  void down(size_t at, const Entry& entry) {
    for (size_t first; (first = at * kWays + 1) < entries_.size();) {
      const size_t end = first + kWays < entries_.size() ? first + kWays : entries_.size();
      size_t least = first;
      for (size_t i = first + 1; i < end; ++i) {
        if (entries_[i].key < entries_[least].key) least = i;
      }
      if (!(entries_[least].key < entry.key)) break;
      put(at, entries_[least]);
      at = least;
    }
    put(at, entry);
  }

  std::vector<Entry> entries_;
  std::vector<uint32_t> places_;
};

}  // namespace evoke
