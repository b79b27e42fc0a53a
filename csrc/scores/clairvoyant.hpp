// The bound of all policies: a cache that knows the future.
//
// After each request keep, of the residents and the request's blocks, those whose next use is
// nearest; of equals the nearer to the root. A reuse is an interval between two requests and a
// place in the cache can hold one interval at a time: to drop the farthest end is optimal (Belady,
// IBM Systems Journal 1966, with admission left free). An ancestor is never used later than its
// descendant, so what is kept has no holes and prefix hits are hits.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "order.hpp"

namespace evoke {

class Clairvoyant : public Order {
 public:
  using Order::Order;

  void grow(size_t count) override;
  // Request.next_use must be there.
  void request(const Request& request) override;
  uint32_t worst(double clock) override;
  bool admits_first() const override { return true; }
  bool needs_future() const override { return true; }

 protected:
  void enter(uint32_t id) override { order_.insert(key(id)); }
  void exit(uint32_t id) override { order_.erase(key(id)); }

 private:
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;  // next use, depth, id: the last goes first

  Key key(uint32_t id) const { return {next_use_[id], depth_[id], id}; }

  std::set<Key> order_;
  std::vector<uint32_t> next_use_;
  std::vector<uint32_t> depth_;
};

}  // namespace evoke
