// The orders whose ranks only rise with an access: one lazy heap each.
#pragma once

#include <vector>

#include "heap.hpp"
#include "order.hpp"

namespace evoke {

// Rank{}(known, id): smallest goes first; never lower after an access than before.
template <typename Rank>
class HeapOrder : public Order {
 public:
  using Order::Order;
  void grow(size_t count) override {
    Order::grow(count);
    heap_.grow(count);
  }
  uint32_t worst(double) override {
    return heap_.top([this](uint32_t id) { return Rank{}(known(), id); });
  }
  void rebuild() override {
    for (const uint32_t id : heap_.take_ids()) heap_.push(id, Rank{}(known(), id));
  }

 protected:
  void enter(uint32_t id) override { heap_.push(id, Rank{}(known(), id)); }
  void exit(uint32_t id) override { heap_.remove(id); }

 private:
  LazyHeap heap_;
};

// Least recently used.
struct ByRecency {
  HeapRank operator()(const Identities& known, uint32_t id) const { return known.seq[id]; }
};
using Lru = HeapOrder<ByRecency>;

// First in, first out: an access changes nothing.
class Fifo : public Order {
 public:
  using Order::Order;
  void grow(size_t count) override {
    Order::grow(count);
    heap_.grow(count);
    admitted_.resize(count, 0);
  }
  uint32_t worst(double) override {
    return heap_.top([this](uint32_t id) { return admitted_[id]; });
  }

 protected:
  void enter(uint32_t id) override {
    // A parent that its last child uncovers keeps the place that it came in at.
    if (admitted_[id] == 0) admitted_[id] = ++admissions_;
    heap_.push(id, admitted_[id]);
  }
  void exit(uint32_t id) override { heap_.remove(id); }
  void on_leave(uint32_t id) override { admitted_[id] = 0; }

 private:
  LazyHeap heap_;
  std::vector<uint64_t> admitted_;
  uint64_t admissions_ = 0;
};

// Least often used, the least recent of equals.
struct ByCount {
  HeapRank operator()(const Identities& known, uint32_t id) const {
    return HeapRank{known.count[id]} << 32 | known.seq[id];
  }
};
using Lfu = HeapOrder<ByCount>;

// Lowest LRFU score, the least recent of equals: the order of keys is the order of scores at any
// time.
struct ByKey {
  HeapRank operator()(const Identities& known, uint32_t id) const {
    return rank_of(known.key[id], known.seq[id]);
  }
};
using Lrfu = HeapOrder<ByKey>;

}  // namespace evoke
