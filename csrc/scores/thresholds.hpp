// Tiers by score alone, without a capacity: a block is in the first while its score is at least
// `keep`, in the second while it is at least `evict`, gone below.
#pragma once

#include <cstdint>

#include "simulate.hpp"

namespace evoke {

struct ThresholdRules {
  double alpha;
  double keep;
  double evict;
  bool keep_state;  // the score of a block that is gone goes on decaying, else it is forgotten
};

struct ThresholdCounts {
  uint64_t hot = 0;   // accesses of blocks that were in the first tier after the request before
  uint64_t cold = 0;  // in the second
  uint64_t miss = 0;
  uint64_t prefix_hits = 0;
  uint64_t gone = 0;          // times that a block fell out of the second tier
  uint64_t resident_max = 0;  // blocks in both tiers after a request
  uint64_t resident_sum = 0;  // over requests
  uint64_t resident_hot_sum = 0;
};

// Scores age by one a request. Throws std::invalid_argument that names the field and the number:
// alpha, keep or evict not in (0, 1), evict above keep.
ThresholdCounts simulate_thresholds(const Trace& trace, const ThresholdRules& rules);

}  // namespace evoke
