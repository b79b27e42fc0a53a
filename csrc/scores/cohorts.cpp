#include "cohorts.hpp"

#include <algorithm>

namespace evoke {
namespace {
const Bins kAges;
}

uint32_t Cohorts::add(const Cohort& cohort) {
  uint32_t slot = static_cast<uint32_t>(slots_.size());
  if (free_.empty()) {
    slots_.push_back(cohort);
  } else {
    slot = free_.back();
    free_.pop_back();
    slots_[slot] = cohort;
  }
  slots_[slot].older = newest_;
  if (newest_ != kNoId) slots_[newest_].newer = slot;
  newest_ = slot;
  for (uint32_t& first : waiting_) {
    if (first == kNoId) first = slot;
  }
  return slot;
}

void Cohorts::advance(double now_s, ReturnTables* tables) {
  for (size_t bin = 0; bin < kBins; ++bin) {
    while (waiting_[bin] != kNoId) {
      Cohort& cohort = slots_[waiting_[bin]];
      if (now_s - cohort.at_s < kAges.upper_s[bin]) break;
      tables->survived(cohort.gap_class, cohort.count_class, bin, cohort.alive);
      cohort.bin = static_cast<uint8_t>(std::min(bin + 1, kBins - 1));
      waiting_[bin] = cohort.newer;
    }
  }
}

void Cohorts::drop(uint32_t slot) {
  const Cohort& gone = slots_[slot];
  for (uint32_t& first : waiting_) {
    if (first == slot) first = gone.newer;
  }
  if (gone.older != kNoId) slots_[gone.older].newer = gone.newer;
  if (gone.newer != kNoId) slots_[gone.newer].older = gone.older;
  if (newest_ == slot) newest_ = gone.older;
  free_.push_back(slot);
}

}  // namespace evoke
