#include "relevance.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

void check(const char* name, double number, double most) {
  if (number >= 0 && number <= most) return;
  throw std::invalid_argument(std::string(name) + ": " + std::to_string(number) +
                              " is not a number from 0 to " + std::to_string(most));
}

}  // namespace

Relevance::Relevance(Identities* identities, const RelevanceWeights& weights, double alpha)
    : Order(identities), weights_(weights), scores_(identities, alpha, /*weighted=*/true) {
  constexpr double kMost = 1e6;
  check("coherence", weights.coherence, kMost);
  check("recency", weights.recency, kMost);
  check("attention", weights.attention, kMost);
  check("decay", weights.decay, kMost);
  for (const double floor : weights.floors) check("floor", floor, 1);
  if (weights.coherence + weights.recency <= 0) {
    throw std::invalid_argument("recency: 0, and so is coherence: a block may have neither");
  }
}

void Relevance::grow(size_t count) {
  Order::grow(count);
  heap_.grow(count);
  if (count > coherence_.size()) coherence_.resize(count, 0.5f);
}

void Relevance::set_coherence(std::span<const uint32_t> ids, std::span<const float> values) {
  if (ids.size() != values.size()) {
    throw std::invalid_argument("values: " + std::to_string(values.size()) + " for " +
                                std::to_string(ids.size()) + " ids");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    check("values", values[i], 1);
    if (ids[i] >= coherence_.size()) {
      throw std::invalid_argument("ids: " + std::to_string(ids[i]) + " is not known");
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) coherence_[ids[i]] = values[i];
  stale_ = true;
}

double Relevance::value(uint32_t id, double clock) const {
  const Identities& all = known();
  double total = weights_.coherence * coherence_[id] +
                 weights_.recency * std::exp(-weights_.decay * (clock - all.at_clock[id]));
  double weight = weights_.coherence + weights_.recency;
  if (weights_.attention > 0 && all.key[id] != kNeverKey) {
    total += weights_.attention * std::exp(scores_.log_score(id, clock));
    weight += weights_.attention;
  }
  const uint8_t role = all.role[id];
  const double floor = role < kRoles ? weights_.floors[role] : 0;
  return (floor + (1 - floor) * total / weight) * all.priority[id] / 16.0;
}

uint32_t Relevance::worst(double clock) {
  if (clock != clock_ || stale_) {
    clock_ = clock;
    stale_ = false;
    for (const uint32_t id : heap_.take_ids()) heap_.push(id, rank(id));
  }
  return heap_.top([this](uint32_t id) { return rank(id); });
}

}  // namespace evoke
