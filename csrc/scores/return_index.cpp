#include "return_index.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

void check(const ReturnRules& rules) {
  if (rules.capacity_bytes == 0) {
    throw std::invalid_argument("capacity: 0 is not above 0");
  }
  if (!(rules.memory_requests > 1)) {
    throw std::invalid_argument("memory_requests: " + std::to_string(rules.memory_requests) +
                                " is not above 1");
  }
}

}  // namespace

ReturnIndex::ReturnIndex(Identities* identities, const ReturnRules& rules)
    : Order(identities),
      rules_((check(rules), rules)),
      learner_(identities, rules.memory_requests),
      leaves_(&learner_) {
  leaves_.start(rules.choosing ? ClassSet::kAge : rules.set);
  if (rules.choosing) shadows_ = std::make_unique<ReturnShadows>(&learner_, rules.capacity_bytes);
}

void ReturnIndex::grow(size_t count) {
  if (count <= size()) return;
  Order::grow(count);
  learner_.grow(count);
  if (shadows_) shadows_->grow(count);
}

void ReturnIndex::request(const Request& request) {
  if (request.ids.empty()) return;
  own_ = kNoId;
  chosen_ = next_ = kNoId;
  learner_.request(request);
  for (const uint32_t id : request.ids) {
    if (is_candidate(id)) enter(id);
  }
  if (!shadows_) return;
  shadows_->request(request.ids);
  if (shadows_->best() != set()) use(shadows_->best());
}

void ReturnIndex::forget(uint32_t id) {
  if (shadows_) shadows_->forget(id);
  learner_.forget(id);
}

void ReturnIndex::enter(uint32_t id) {
  if (!learner_.remembers(id)) learner_.file_unasked(id);
  leaves_.push(id, [this](uint32_t leaf) { return is_candidate(leaf); });
  if (learner_.is_newest(id)) own_ = id;
  const bool follows = chosen_ != kNoId && parent(chosen_) == id && learner_.are_alike(chosen_, id);
  next_ = follows ? id : kNoId;
  chosen_ = kNoId;
}

void ReturnIndex::exit(uint32_t id) {
  if (id == own_) own_ = kNoId;
  if (id != chosen_) chosen_ = kNoId;
  next_ = kNoId;
}

uint32_t ReturnIndex::worst_but(uint32_t own) {
  return leaves_.worst(own, [this](uint32_t id) { return is_candidate(id); });
}

uint32_t ReturnIndex::worst(double) {
  chosen_ = next_ != kNoId ? next_ : worst_but(own_);
  return chosen_;
}

bool ReturnIndex::refuses(uint32_t newcomer, double clock) {
  if (!learner_.remembers(newcomer)) return false;
  const uint32_t other = worst(clock);
  return other != kNoId && learner_.worth(set(), newcomer) < learner_.worth(set(), other);
}

void ReturnIndex::rebuild() { use(set()); }

void ReturnIndex::resize(uint64_t capacity_bytes) {
  ReturnRules wanted = rules_;
  wanted.capacity_bytes = capacity_bytes;
  check(wanted);
  rules_ = wanted;
  if (shadows_) shadows_->resize(capacity_bytes);
}

void ReturnIndex::use(ClassSet set) {
  const auto leaf = [this](uint32_t id) { return is_candidate(id); };
  const std::vector<uint32_t> ids = leaves_.leaves(leaf);
  leaves_.start(set);
  for (const uint32_t id : ids) leaves_.push(id, leaf);
}

}  // namespace evoke
