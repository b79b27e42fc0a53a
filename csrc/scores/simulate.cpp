#include "simulate.hpp"

#include <cassert>
#include <vector>

namespace evoke {
namespace {

std::vector<uint32_t> next_uses(const Trace& trace) {
  std::vector<uint32_t> uses(trace.ids.size());
  std::vector<uint32_t> next(trace.identities, kNeverUsed);
  for (size_t number = trace.starts.size() - 1; number-- > 0;) {
    const size_t begin = trace.starts[number];
    const size_t end = trace.starts[number + 1];
    for (size_t i = begin; i < end; ++i) uses[i] = next[trace.ids[i]];
    for (size_t i = begin; i < end; ++i) next[trace.ids[i]] = static_cast<uint32_t>(number);
  }
  return uses;
}

class Run {
 public:
  Run(const Trace& trace, const Rules& rules, Identities* identities, Scores* scores, Order* order,
      Victims* victims)
      : trace_(trace),
        rules_(rules),
        known_(*identities),
        scores_(*scores),
        order_(*order),
        victims_(victims) {
    known_.grow(trace.identities);
    order_.grow(trace.identities);
    if (order->needs_future()) next_use_ = next_uses(trace);
  }

  Counts operator()() {
    for (size_t number = 0; number + 1 < trace_.starts.size(); ++number) {
      ids_ = trace_.ids.subspan(trace_.starts[number],
                                trace_.starts[number + 1] - trace_.starts[number]);
      now_s_ = trace_.now_s[number];
      clock_ = rules_.clock == Clock::kSecond ? now_s_ : static_cast<double>(number);
      one_request();
      if (victims_) victims_->starts.push_back(victims_->ids.size());
    }
    return counts_;
  }

 private:
  void one_request() {
    size_t leading = 0;
    while (leading < ids_.size() && order_.resident(ids_[leading])) ++leading;
    counts_.prefix_hits += leading;
    order_.request({ids_, clock_, now_s_, next_use_of_request()});
    const size_t count = ids_.size();
    for (size_t i = 0; i < count; ++i) {
      access(rules_.touch == Touch::kList ? i : count - 1 - i);
    }
    if (!order_.admits_first()) return;
    while (order_.residents() > rules_.capacity_blocks) evict();
  }

  std::span<const uint32_t> next_use_of_request() const {
    if (next_use_.empty()) return {};
    return {next_use_.data() + (ids_.data() - trace_.ids.data()), ids_.size()};
  }

  void access(size_t position) {
    const uint32_t id = ids_[position];
    if (rules_.clock == Clock::kAccess) clock_ = static_cast<double>(counts_.accesses);
    const auto seq = static_cast<uint32_t>(counts_.accesses++);
    const bool hit = order_.resident(id);
    counts_.hits += hit;
    if (!hit && !order_.admits_first() && order_.residents() >= rules_.capacity_blocks) evict();
    if (rules_.scored) {
      scores_.touch(id, 1.0, clock_, seq);
    } else {
      scores_.note(id, clock_, seq);
    }
    order_.touched(id);
    if (!hit) order_.admit(id, rules_.chains && position > 0 ? ids_[position - 1] : kNoId);
  }

  void evict() {
    const uint32_t id = order_.worst(clock_);
    assert(id != kNoId);
    ++counts_.evictions;
    if (victims_) victims_->ids.push_back(id);
    order_.leave(id);
    if (!rules_.keep_state) known_.reset(id);
  }

  const Trace& trace_;
  const Rules rules_;
  Identities& known_;
  Scores& scores_;
  Order& order_;
  Victims* victims_;
  std::vector<uint32_t> next_use_;  // by access, if the order needs it
  std::span<const uint32_t> ids_;
  double now_s_ = 0;
  double clock_ = 0;
  Counts counts_;
};

}  // namespace

Counts simulate(const Trace& trace, const Rules& rules, Identities* identities, Scores* scores,
                Order* order, Victims* victims) {
  return Run(trace, rules, identities, scores, order, victims)();
}

}  // namespace evoke
