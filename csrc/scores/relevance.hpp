// The order `relevance` of a tier: a blend of coherence, recency and attention, with role floors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "heap.hpp"
#include "order.hpp"

namespace evoke {

constexpr size_t kRoles = 6;  // none, system, document, user, assistant, tool

struct RelevanceWeights {
  double coherence = 0.6;
  double recency = 0.4;
  double attention = 0;
  double decay = 0.01;  // per clock unit since the last access
  std::array<double, kRoles> floors{};
};

// value = (floor + (1 - floor) raw) x priority; the lowest goes first, of equal ones the least
// recent, even where the recency has vanished in the sum. raw is the weighted mean of the signals
// that a block has: coherence (0.5 until it is told), recency exp(-decay x idle), attention = the
// LRFU score.
//
// Which of two blocks is worth more changes with time alone, so a heap is good for one value of the
// clock: the first choice at another one values all candidates anew, O(n).
class Relevance : public Order {
 public:
  // Throws std::invalid_argument: weights that are negative, not finite or all 0, floors outside
  // 0 to 1. alpha: of the scores, which are weighted ones.
  Relevance(Identities* identities, const RelevanceWeights& weights, double alpha);

  void grow(size_t count) override;
  // Values in 0 to 1, one per id. Throws std::invalid_argument, and nothing has changed then.
  void set_coherence(std::span<const uint32_t> ids, std::span<const float> values);
  double value(uint32_t id, double clock) const;
  uint32_t worst(double clock) override;
  void rebuild() override { stale_ = true; }

 protected:
  void enter(uint32_t id) override { heap_.push(id, rank(id)); }
  void exit(uint32_t id) override { heap_.remove(id); }

 private:
  HeapRank rank(uint32_t id) const {
    const double at = known().at_clock[id];  // later than clock_ until the next choice
    return rank_of(value(id, clock_ < at ? at : clock_), known().seq[id]);
  }

  RelevanceWeights weights_;
  Scores scores_;
  std::vector<float> coherence_;
  LazyHeap heap_;  // as of clock_
  double clock_ = 0;
  bool stale_ = false;
};

}  // namespace evoke
