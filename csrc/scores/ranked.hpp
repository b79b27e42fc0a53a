// The order of a policy from outside: ranks that are set for many blocks at once, now and then.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "heap.hpp"
#include "order.hpp"

namespace evoke {

// The lowest rank goes first, the least recent of equals. A block that came or was used after the
// last ranking goes after all others.
class Ranked : public Order {
 public:
  // Called with clock and seconds before the touches of every `every`th request, so that whoever
  // ranks can call set_ranks(); empty: never.
  using OnTick = std::function<void(double clock, double now_s)>;

  Ranked(Identities* identities, uint32_t every, OnTick on_tick);

  void grow(size_t count) override;
  void request(const Request& request) override;
  uint32_t worst(double clock) override;
  void forget(uint32_t id) override;
  void rebuild() override;

  // Throws std::invalid_argument and changes nothing: another number of ranks than of ids, an id
  // that the order has not grown to, a rank that is not finite.
  void set_ranks(std::span<const uint32_t> ids, std::span<const double> ranks);
  std::vector<uint32_t> resident_ids() const;
  bool tail(uint32_t id) const { return is_candidate(id); }

 protected:
  void enter(uint32_t id) override { heap_.push(id, key(id)); }
  void exit(uint32_t id) override { heap_.remove(id); }
  void on_touch(uint32_t id) override { ranks_[id] = kUnranked; }

 private:
  static constexpr double kUnranked = std::numeric_limits<double>::infinity();

  HeapRank key(uint32_t id) const { return rank_of(ranks_[id], known().seq[id]); }

  std::vector<double> ranks_;
  LazyHeap heap_;
  uint32_t every_;
  uint32_t requests_ = 0;
  OnTick on_tick_;
};

}  // namespace evoke
