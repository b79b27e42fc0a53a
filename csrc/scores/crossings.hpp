// When decaying scores fall below a threshold: a calendar queue, so that nobody sweeps.
//
// Between accesses a score is exp(K - t lambda), so the step at which it crosses is known at the
// access. Source: Brown, Calendar queues, Communications of the ACM 31(10), 1988.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace evoke {

// Steps are whole clock units from 0 on and never fall.
class Crossings {
 public:
  void grow(size_t count) {
    last_.resize(count, 0);
    flags_.resize(count, 0);
  }
  // id is above the threshold up to and including step `last`, which is never lowered while it is.
  // last < step: it is not above.
  void raise(uint32_t id, int64_t step, int64_t last) {
    if (last < step) return;
    above_ += !(flags_[id] & kAbove);
    last_[id] = last;
    // Who has an entry is asked when that comes up, and filed anew.
    if (!(flags_[id] & kFiled)) file(id, step);
    flags_[id] |= kAbove | kFiled;
  }
  // Those whose last step is before `step` fall; to be called for every step.
  void advance(int64_t step) {
    std::vector<uint32_t>& due = days_[static_cast<size_t>(step % kDays)];
    falling_.swap(due);
    for (const uint32_t id : falling_) {
      if (last_[id] >= step) {
        file(id, step);
      } else {
        flags_[id] = 0;
        --above_;
      }
    }
    falling_.clear();
  }
  bool above(uint32_t id) const { return flags_[id] & kAbove; }
  uint64_t above() const { return above_; }

 private:
  static constexpr int64_t kDays = 1024;
  static constexpr uint8_t kAbove = 1;
  static constexpr uint8_t kFiled = 2;

  void file(uint32_t id, int64_t step) {
    const int64_t wait = last_[id] + 1 - step;
    const int64_t day = step + (wait < kDays ? wait : kDays - 1);
    days_[static_cast<size_t>(day % kDays)].push_back(id);
  }

  std::vector<int64_t> last_;
  std::vector<uint8_t> flags_;
  std::array<std::vector<uint32_t>, kDays> days_;  // by the step at which to look, modulo
  std::vector<uint32_t> falling_;
  uint64_t above_ = 0;
};

}  // namespace evoke
