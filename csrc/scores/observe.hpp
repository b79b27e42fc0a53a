// Attention mass that a running sequence reports of its blocks, and how it becomes scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "identities.hpp"
#include "order.hpp"

namespace evoke {

// What a report that lacks a block of its sequence (it left the engine's memory) does to it.
enum class Absent : uint8_t {
  kDecay,   // as if it had mass 0
  kFreeze,  // its score waits while the sequence runs
  kReset,   // its score is forgotten
};

struct SignalRules {
  double alpha;  // of the scores, per clock unit
  // A second channel lifts a block where it is above knee / n of n blocks:
  // x = max(x0, x1 - knee / n, x2 - knee / n, ...).
  double knee = 12;
  Absent absent = Absent::kFreeze;
};

// One sequence. Reports are summed up in single precision, block by block, each weighing as many
// steps as it says: sum = (1-a)^steps sum + (1 - (1-a)^steps) x. fold() adds the sums to the keys
// of the identities: exact, because LRFU scores are sums. So a report costs a few operations per
// block, and logarithms are taken once per fold, however many reports came between.
class SequenceSignal {
 public:
  // Throws std::invalid_argument that names the field.
  explicit SequenceSignal(const SignalRules& rules);

  size_t size() const { return ids_.size(); }
  // The sequence's blocks from `first` on; kNoId: not known. Throws std::invalid_argument.
  void assign(size_t first, std::span<const uint32_t> ids);
  // masses: IEEE half floats, 0 to 1, channel after channel, size() each. present: a bit per block,
  // least significant first; empty: all are. Throws std::invalid_argument that names channel, block
  // and number; nothing has changed then.
  void report(std::span<const uint16_t> masses, size_t channels, uint32_t steps,
              std::span<const uint8_t> present);
  bool pending() const { return pending_; }
  // Adds what was reported since the last fold to the scores as of `clock`, which has moved by
  // `elapsed` since then. An access is mass of at least 1/n in a report: columns of the last
  // access, tail first, from `seq` on. order may be null. How many numbers of seq were used.
  uint32_t fold(double clock, double elapsed, uint32_t seq, Identities* known, const Scores& scores,
                Order* order);

 private:
  void check(std::span<const uint16_t> masses, size_t channels) const;
  void combine(std::span<const uint16_t> masses, size_t channels);
  void add_some(float keep, float gain);
  void count_accesses(float share);

  SignalRules rules_;
  std::vector<uint32_t> ids_;
  size_t ids_below_ = 0;  // every one that was ever assigned
  std::vector<float> sums_;
  std::vector<float> mass_;         // of the report at hand
  std::vector<uint32_t> accesses_;  // since the last fold
  std::vector<uint8_t> absent_;     // in the last report
  bool any_absent_ = false;
  bool pending_ = false;
};

}  // namespace evoke
