// Blocks that one request used in the same way age together: cohorts, from the oldest to the
// newest.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "identities.hpp"
#include "return_classes.hpp"
#include "return_tables.hpp"

namespace evoke {

struct Cohort {
  double at_s;
  uint64_t filing;          // number of the request, or of the block that nobody asked for
  uint32_t request_blocks;  // of that request
  uint32_t alive = 0;       // blocks not used since and still remembered
  uint32_t older = kNoId;
  uint32_t newer = kNoId;
  uint8_t bin = 0;  // of its age when time last advanced
  uint8_t gap_class;
  uint8_t count_class;
};

// Slots are reused when the last block has gone: never more than remembered blocks.
class Cohorts {
 public:
  Cohorts() { waiting_.fill(kNoId); }

  const Cohort& operator[](uint32_t slot) const { return slots_[slot]; }
  size_t size() const { return slots_.size() - free_.size(); }

  // Not older than any other; with one block at once, or its slot would be taken again.
  uint32_t add(const Cohort& cohort);
  void join(uint32_t slot) { ++slots_[slot].alive; }
  void part(uint32_t slot) {
    if (--slots_[slot].alive == 0) drop(slot);
  }
  // Counts the survivors of every bin whose upper edge a cohort has just reached.
  void advance(double now_s, ReturnTables* tables);

 private:
  void drop(uint32_t slot);

  std::vector<Cohort> slots_;
  std::vector<uint32_t> free_;
  uint32_t newest_ = kNoId;
  std::array<uint32_t, kBins> waiting_;  // by bin: the oldest that has not reached its upper edge
};

}  // namespace evoke
