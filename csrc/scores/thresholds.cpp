#include "thresholds.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "crossings.hpp"

namespace evoke {
namespace {

void check(const char* field, double number) {
  if (number > 0 && number < 1) return;
  throw std::invalid_argument(std::string(field) + ": " + std::to_string(number) +
                              " is not between 0 and 1");
}

class Run {
 public:
  Run(const Trace& trace, const ThresholdRules& rules)
      : trace_(trace), rules_(rules), scores_(&known_, rules.alpha, true) {
    known_.grow(trace.identities);
    hot_.grow(trace.identities);
    resident_.grow(trace.identities);
  }

  ThresholdCounts operator()() {
    for (size_t number = 0; number + 1 < trace_.starts.size(); ++number) {
      const uint64_t start = trace_.starts[number];
      one_request(trace_.ids.subspan(start, trace_.starts[number + 1] - start),
                  static_cast<int64_t>(number));
      counts_.resident_sum += resident_.above();
      counts_.resident_hot_sum += hot_.above();
      counts_.resident_max = std::max(counts_.resident_max, resident_.above());
    }
    return counts_;
  }

 private:
  void one_request(std::span<const uint32_t> ids, int64_t step) {
    size_t leading = 0;
    while (leading < ids.size() && resident_.above(ids[leading])) ++leading;
    counts_.prefix_hits += leading;
    for (const uint32_t id : ids) count(id);
    for (const uint32_t id : ids) touch(id, step);
    const uint64_t before = resident_.above();
    hot_.advance(step);
    resident_.advance(step);
    counts_.gone += before - resident_.above();
  }

  void count(uint32_t id) {
    if (hot_.above(id)) {
      ++counts_.hot;
    } else if (resident_.above(id)) {
      ++counts_.cold;
    } else {
      ++counts_.miss;
      if (!rules_.keep_state) known_.reset(id);
    }
  }

  void touch(uint32_t id, int64_t step) {
    scores_.touch(id, 1.0, static_cast<double>(step), sequence_++);
    hot_.raise(id, step, last_step(id, step, rules_.keep));
    resident_.raise(id, step, last_step(id, step, rules_.evict));
  }

  bool reaches(uint32_t id, int64_t step, double threshold) const {
    return std::exp(scores_.log_score(id, static_cast<double>(step))) >= threshold;
  }
  // The last step from `step` on at which the score is not below; step - 1 if it is below now.
  int64_t last_step(uint32_t id, int64_t step, double threshold) const {
    if (!reaches(id, step, threshold)) return step - 1;
    const double now = static_cast<double>(step);
    const double wait = (scores_.log_score(id, now) - std::log(threshold)) / scores_.lambda();
    int64_t last = step + static_cast<int64_t>(wait);
    while (reaches(id, last + 1, threshold)) ++last;
    while (!reaches(id, last, threshold)) --last;
    return last;
  }

  const Trace& trace_;
  const ThresholdRules rules_;
  Identities known_;
  Scores scores_;
  Crossings hot_;
  Crossings resident_;
  ThresholdCounts counts_;
  uint32_t sequence_ = 0;
};

}  // namespace

ThresholdCounts simulate_thresholds(const Trace& trace, const ThresholdRules& rules) {
  check("alpha", rules.alpha);
  check("keep", rules.keep);
  check("evict", rules.evict);
  if (rules.evict > rules.keep) {
    throw std::invalid_argument("evict: " + std::to_string(rules.evict) +
                                " is above keep: " + std::to_string(rules.keep));
  }
  return Run(trace, rules)();
}

}  // namespace evoke
