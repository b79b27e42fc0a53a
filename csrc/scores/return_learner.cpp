#include "return_learner.hpp"

#include <algorithm>
#include <cmath>

namespace evoke {
namespace {

// Never so rarely that a change of load waits.
constexpr uint64_t kRefreshRequestsMost = 1024;

}  // namespace

ReturnLearner::ReturnLearner(const Identities* identities, double memory_requests)
    : known_(identities), memory_requests_(memory_requests) {}

void ReturnLearner::request(const Request& request) {
  if (request.ids.empty()) return;
  // Not a number is not later either.
  if (requests_ == 0 ? std::isfinite(request.now_s) : request.now_s > now_s_) {
    now_s_ = request.now_s;
  }
  cohorts_.advance(now_s_, &tables_);
  Filing filing = begin(request);
  ++requests_;
  newest_ = ++filings_;
  const size_t count = request.ids.size();
  for (size_t i = 0; i < count; ++i) file(&filing, request.ids[i], i + 1 == count);
  requests_counted_ += 1;
  blocks_counted_ += static_cast<double>(count);
  refresh_when_due();
}

ReturnLearner::Filing ReturnLearner::begin(const Request& request) {
  const size_t count = request.ids.size();
  size_t seen = 0;
  while (seen < count && remembers(request.ids[seen])) ++seen;
  size_t gap = 0;
  if (seen > 1) {
    const Cohort& before = cohorts_[cohort_[request.ids[seen - 1]]];
    // Less than half of the earlier request in common: a shared beginning, not its next turn.
    if (2 * seen + 4 >= before.request_blocks) gap = gap_of(now_s_ - before.at_s);
  }
  Filing filing{.blocks = count, .gap = gap, .fresh = new_of(count - seen), .slots = {}};
  filing.slots.fill(kNoId);
  return filing;
}

void ReturnLearner::file(Filing* filing, uint32_t id, bool is_tail) {
  const uint32_t before = cohort_[id];
  if (before != kNoId) {
    if (is_newest(id)) return;  // named twice by one request
    const Cohort& cohort = cohorts_[before];
    tables_.returned(cohort.gap_class, cohort.count_class, cohort.bin);
    cohorts_.part(before);
  }
  const size_t level = level_of(known_->count[id]);
  uint32_t& slot = filing->slots[is_tail + kTails * level];
  if (slot == kNoId) {
    slot = cohorts_.add(
        {.at_s = now_s_,
         .filing = newest_,
         .request_blocks = static_cast<uint32_t>(filing->blocks),
         .gap_class = static_cast<uint8_t>(gap_class(is_tail, filing->gap)),
         .count_class = static_cast<uint8_t>(count_class(is_tail, level, filing->fresh))});
  }
  cohorts_.join(slot);
  cohort_[id] = slot;
}

void ReturnLearner::file_unasked(uint32_t id) {
  cohort_[id] = cohorts_.add({.at_s = now_s_,
                              .filing = ++filings_,
                              .request_blocks = 1,
                              .gap_class = static_cast<uint8_t>(gap_class(0, 0)),
                              .count_class = static_cast<uint8_t>(count_class(0, 0, 0))});
  cohorts_.join(cohort_[id]);
}

void ReturnLearner::forget(uint32_t id) {
  if (!remembers(id)) return;
  cohorts_.part(cohort_[id]);
  cohort_[id] = kNoId;
}

size_t ReturnLearner::class_of(ClassSet set, uint32_t id) const {
  const Cohort& cohort = cohorts_[cohort_[id]];
  switch (set) {
    case ClassSet::kAge:
      return cohort.gap_class % kTails;
    case ClassSet::kGap:
      return cohort.gap_class;
    case ClassSet::kCountNew:
      break;
  }
  return cohort.count_class;
}

double ReturnLearner::worth(ClassSet set, uint32_t id) const {
  return tables_.index(set, class_of(set, id), cohorts_[cohort_[id]].bin) / bytes(id);
}

void ReturnLearner::refresh_when_due() {
  if (requests_ < refresh_at_) return;
  const uint64_t wait = std::clamp(requests_ / 64, kRefreshRequestsLeast, kRefreshRequestsMost);
  refresh_at_ = requests_ + wait;
  tables_.refresh(blocks_counted_ / requests_counted_);
  const double factor = std::exp2(-static_cast<double>(wait) / memory_requests_);
  tables_.fade(factor);
  requests_counted_ *= factor;
  blocks_counted_ *= factor;
}

}  // namespace evoke
