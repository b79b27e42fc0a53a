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

// Part of a dump, in no order: a loop can take a large one in pieces.
struct RememberedPart {
  std::vector<RememberedRecord> records;
  std::vector<uint32_t> seqs;  // of their last accesses
};
// Those of the identities first to first + count that have been accessed.
RememberedPart dump_part(const Ranker& ranker, double clock, size_t first, size_t count);
// All that have been accessed, least recent first.
std::vector<RememberedRecord> dump_remembered(const Ranker& ranker, double clock);

// Of a new ranker; what it knows already stays. elapsed: clock units between the dump and now.
// rows_most: of the ranker that dumped, which bounds how many are remembered. How many were taken.
// Throws std::invalid_argument and changes nothing: a number that no dump writes.
size_t load_remembered(Ranker* ranker, std::span<const RememberedRecord> records, double clock,
                       double elapsed, size_t rows_most);

}  // namespace evoke
