#include "ranked.hpp"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace evoke {

Ranked::Ranked(Identities* identities, uint32_t every, OnTick on_tick)
    : Order(identities), every_(every), on_tick_(std::move(on_tick)) {
  if (every == 0) throw std::invalid_argument("every: 0 requests");
}

void Ranked::grow(size_t count) {
  Order::grow(count);
  if (count <= ranks_.size()) return;
  ranks_.resize(count, kUnranked);
  heap_.grow(count);
}

void Ranked::request(const Request& request) {
  if (on_tick_ && requests_++ % every_ == 0) on_tick_(request.clock, request.now_s);
}

uint32_t Ranked::worst(double) {
  return heap_.top([this](uint32_t id) { return key(id); });
}

void Ranked::forget(uint32_t id) { ranks_[id] = kUnranked; }

void Ranked::rebuild() {
  for (const uint32_t id : heap_.take_ids()) heap_.push(id, key(id));
}

void Ranked::set_ranks(std::span<const uint32_t> ids, std::span<const double> ranks) {
  if (ids.size() != ranks.size()) {
    throw std::invalid_argument("ranks: " + std::to_string(ranks.size()) + " for " +
                                std::to_string(ids.size()) + " blocks");
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= ranks_.size()) {
      throw std::invalid_argument("ids: " + std::to_string(ids[i]) + " is not known");
    }
    if (!std::isfinite(ranks[i])) {
      throw std::invalid_argument("ranks: block " + std::to_string(ids[i]) + " has " +
                                  std::to_string(ranks[i]));
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) ranks_[ids[i]] = ranks[i];
  rebuild();
}

std::vector<uint32_t> Ranked::resident_ids() const {
  std::vector<uint32_t> ids;
  ids.reserve(residents());
  for (uint32_t id = 0; id < ranks_.size(); ++id) {
    if (resident(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace evoke
