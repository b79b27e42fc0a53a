// What is remembered of identities, as bytes that outlive the daemon.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ranker.hpp"

namespace evoke {

// One identity, little-endian. The clock begins anew with each daemon, so ages are kept, not times.
struct RememberedRecord {
  Tag tag;
  double log_score;  // as of the dump; -inf: none
  double idle;       // clock units since the last access
  uint32_t bytes;
  uint16_t count;
  uint8_t role;
  uint8_t priority;
};
static_assert(sizeof(RememberedRecord) == 40);

// All that have been accessed, least recent first.
std::vector<RememberedRecord> dump_remembered(Ranker* ranker, double clock);

// Of a new ranker; what it knows already stays. elapsed: clock units between the dump and now. How
// many were taken. Throws std::invalid_argument and changes nothing: a number that no dump writes.
size_t load_remembered(Ranker* ranker, std::span<const RememberedRecord> records, double clock,
                       double elapsed);

}  // namespace evoke
