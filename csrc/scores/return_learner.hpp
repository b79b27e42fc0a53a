// What the return index knows of every remembered block, whatever holds it: its cohort, and by the
// cohort's classes what a second of keeping it is worth.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cohorts.hpp"
#include "order.hpp"
#include "return_tables.hpp"

namespace evoke {

// Tables follow every 16th request, later less often.
constexpr uint64_t kRefreshRequestsLeast = 16;

class ReturnLearner {
 public:
  // memory_requests: after so many requests what was counted weighs half.
  ReturnLearner(const Identities* identities, double memory_requests);

  void grow(size_t count) { cohort_.resize(count, kNoId); }
  // Learns from the ages at which these blocks come back and files them under new cohorts. Time
  // that runs backwards stands still.
  void request(const Request& request);
  // A block that nobody asked for is filed as new.
  void file_unasked(uint32_t id);
  void forget(uint32_t id);

  bool remembers(uint32_t id) const { return cohort_[id] != kNoId; }
  // Worth the same whatever happens, until one of them is used: who goes after the other needs no
  // decision.
  bool are_alike(uint32_t id, uint32_t other) const {
    return cohort_[id] == cohort_[other] && bytes(id) == bytes(other);
  }
  // Rises from one request to the next: who was used later.
  uint64_t filing_of(uint32_t id) const { return cohorts_[cohort_[id]].filing; }
  // Whether the newest request asked for it.
  bool is_newest(uint32_t id) const { return filing_of(id) == newest_; }
  size_t class_of(ClassSet set, uint32_t id) const;
  // Hits per byte-second to be had from keeping id, at its age as of the last request.
  double worth(ClassSet set, uint32_t id) const;
  uint32_t bytes(uint32_t id) const { return known_->bytes[id]; }
  size_t cohorts() const { return cohorts_.size(); }

 private:
  // Filing of the newest request: its cohorts by tail and level, made when first needed.
  struct Filing {
    size_t blocks;
    size_t gap;
    size_t fresh;
    std::array<uint32_t, kTails * kLevels> slots;
  };

  Filing begin(const Request& request);
  void file(Filing* filing, uint32_t id, bool is_tail);
  void refresh_when_due();

  const Identities* known_;
  double memory_requests_;
  std::vector<uint32_t> cohort_;
  Cohorts cohorts_;
  ReturnTables tables_;
  double now_s_ = 0;
  uint64_t requests_ = 0;
  uint64_t filings_ = 0;
  uint64_t newest_ = 0;  // filing of the newest request
  uint64_t refresh_at_ = kRefreshRequestsLeast;
  double requests_counted_ = 0;  // both faded like the tables
  double blocks_counted_ = 0;
};

}  // namespace evoke
