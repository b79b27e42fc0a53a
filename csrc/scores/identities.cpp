#include "identities.hpp"

#include <stdexcept>
#include <string>

namespace evoke {

void Identities::grow(size_t count_wanted) {
  if (count_wanted <= size()) return;
  key.resize(count_wanted, kNeverKey);
  at_clock.resize(count_wanted, 0);
  seq.resize(count_wanted, 0);
  count.resize(count_wanted, 0);
  role.resize(count_wanted, 0);
  priority.resize(count_wanted, 16);
  bytes.resize(count_wanted, 1);
}

void Identities::reset(uint32_t id) {
  key[id] = kNeverKey;
  at_clock[id] = 0;
  seq[id] = 0;
  count[id] = 0;
}

void Identities::clear(uint32_t id) {
  reset(id);
  role[id] = 0;
  priority[id] = 16;
  bytes[id] = 1;
}

void Identities::change_clock(double clock, double next) {
  const double rate = clock > 0 ? next / clock : 0;
  for (double& at : at_clock) at = next - (clock - at) * rate;
}

Scores::Scores(Identities* identities, double alpha, bool weighted)
    : identities_(identities), weighted_(weighted) {
  if (!(alpha > 0 && alpha < 1)) {
    throw std::invalid_argument("alpha: " + std::to_string(alpha) + " is not between 0 and 1");
  }
  lambda_ = -std::log1p(-alpha);
  log_alpha_ = std::log(alpha);
  offset_ = weighted ? log_alpha_ : 0;
}

void Scores::rescale(double alpha, double clock, double next_clock) {
  const Scores next(identities_, alpha, weighted_);
  for (double& key : identities_->key) {
    // ln score now stays what it is: K' = ln score - ln alpha' + offset' + clock lambda'.
    const double log_score = key - offset_ + log_alpha_ - clock * lambda_;
    key = log_score - next.log_alpha_ + next.offset_ + next_clock * next.lambda_;
  }
  *this = next;
}

}  // namespace evoke
