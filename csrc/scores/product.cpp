#include "product.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kWidthMin = 64;
// A bound is computed like a priority, but the functions in it may be off by a last digit.
constexpr double kDoubt = 1e-12;

}  // namespace

const Product::Least Product::kNobody{kInfinity, kInfinity, 0xFFFFFFFF, kNoSlot};

Product::Product(Identities* identities, double alpha, double beta, bool rescaled)
    : Order(identities), beta_(beta), rescaled_(rescaled) {
  if (!(beta > 0 && std::isfinite(beta))) {
    throw std::invalid_argument("beta: " + std::to_string(beta) + " is not above 0");
  }
  set_alpha(alpha);
}

void Product::set_alpha(double alpha) {
  if (!(alpha > 0 && alpha < 1)) {
    throw std::invalid_argument("alpha: " + std::to_string(alpha) + " is not between 0 and 1");
  }
  alpha_ = alpha;
  lambda_ = -std::log1p(-alpha);
}

void Product::grow(size_t count) {
  Order::grow(count);
  if (count > slots_.size()) slots_.resize(count, kNoSlot);
}

double Product::Power::operator()(double exponent) {
  if (exponent != of) *this = {exponent, std::expm1(exponent)};
  return less_one;
}

double Product::priority(double key, double at_clock, double clock) const {
  if (clock == at_clock) return 0;
  const double log_score = key - clock * lambda_;
  const double idle = idle_(-beta_ * (clock - at_clock));
  if (!rescaled_) return score_(log_score) * idle;
  return -idle * alpha_ / (std::exp(log_score) + alpha_);
}

Product::Least Product::lesser(const Least& a, const Least& b) {
  const bool is_a = (a.key <= b.key) & (a.at_clock <= b.at_clock) & (a.seq <= b.seq);
  const bool is_b = (b.key <= a.key) & (b.at_clock <= a.at_clock) & (b.seq <= a.seq);
  return {std::min(a.key, b.key), std::min(a.at_clock, b.at_clock), std::min(a.seq, b.seq),
          is_a   ? a.slot
          : is_b ? b.slot
                 : kNoSlot};
}

Product::Least Product::of(uint32_t id) const {
  return {known().key[id], known().at_clock[id], known().seq[id], slots_[id]};
}

bool Product::pull(size_t node) {
  const Least both = lesser(tree_[2 * node], tree_[2 * node + 1]);
  const Least& had = tree_[node];
  const bool same = (had.key == both.key) & (had.at_clock == both.at_clock) &
                    (had.seq == both.seq) & (had.slot == both.slot);
  tree_[node] = both;
  return !same;
}

void Product::put(size_t slot, const Least& least) {
  size_t node = width_ + slot;
  tree_[node] = least;
  while (node > 1 && pull(node / 2)) node /= 2;
}

void Product::add(uint32_t id) {
  if (next_slot_ == width_) compact();
  slots_[id] = static_cast<uint32_t>(next_slot_);
  ids_[next_slot_] = id;
  put(next_slot_, of(id));
  if (!front_.empty()) open(width_ + next_slot_);
  ++next_slot_;
}

// Slots anew, by last access, with room for as many again.
void Product::compact() {
  std::vector<uint32_t> live;
  for (size_t slot = 0; slot < next_slot_; ++slot) {
    if (ids_[slot] != kNoId) live.push_back(ids_[slot]);
  }
  std::sort(live.begin(), live.end(),
            [this](uint32_t a, uint32_t b) { return known().seq[a] < known().seq[b]; });
  width_ = kWidthMin;
  while (width_ < 2 * live.size() + 1) width_ *= 2;
  front_.clear();
  tree_.assign(2 * width_, kNobody);
  ids_.assign(width_, kNoId);
  next_slot_ = live.size();
  for (size_t slot = 0; slot < live.size(); ++slot) {
    const uint32_t id = live[slot];
    slots_[id] = static_cast<uint32_t>(slot);
    ids_[slot] = id;
    tree_[width_ + slot] = of(id);
  }
  for (size_t node = width_ - 1; node > 0; --node) {
    tree_[node] = lesser(tree_[2 * node], tree_[2 * node + 1]);
  }
}

void Product::rebuild() {
  if (width_ > 0) compact();
}

void Product::enter(uint32_t id) { add(id); }

void Product::exit(uint32_t id) {
  const uint32_t slot = slots_[id];
  assert(slot != kNoSlot && ids_[slot] == id);
  ids_[slot] = kNoId;
  slots_[id] = kNoSlot;
  tree_[width_ + slot] = kNobody;
}

bool Product::is_stale(uint32_t id) const {
  return tree_[width_ + slots_[id]].seq != known().seq[id];
}

Product::Bound Product::bound(size_t node) const {
  const Least& least = tree_[node];
  double most = priority(least.key, least.at_clock, clock_);
  if (least.slot == kNoSlot) most += std::abs(most) * kDoubt;
  return {most, least.seq, static_cast<uint32_t>(node)};
}

// Into the front.
void Product::open(size_t node) {
  if (tree_[node].key == kInfinity) return;  // nobody is below
  front_.push_back(bound(node));
  std::push_heap(front_.begin(), front_.end());
}

uint32_t Product::worst(double clock) {
  if (candidates() == 0) return kNoId;
  if (clock != clock_) front_.clear();
  clock_ = clock;
  while (true) {
    if (front_.empty()) open(1);
    const Bound first = front_.front();
    freshen(first.node);
    const Least& least = tree_[first.node];
    const bool is_current = bound(first.node).is_as(first);
    if (is_current && least.slot != kNoSlot) {
      const uint32_t id = ids_[least.slot];
      if (!is_stale(id)) return id;
      put(least.slot, of(id));
      continue;
    }
    std::pop_heap(front_.begin(), front_.end());
    front_.pop_back();
    if (!is_current) {
      open(first.node);
    } else {
      open(2 * first.node);
      open(2 * first.node + 1);
    }
  }
}

// Until what the node says is its leaf's, or neither child knows better.
void Product::freshen(size_t node) {
  while (node < width_) {
    const Least& least = tree_[node];
    if (least.slot == kNoSlot) {
      if (!pull(node)) return;
      continue;
    }
    size_t at = width_ + least.slot;
    if (tree_[at].seq == least.seq) return;
    while (at > node) pull(at /= 2);
  }
}

}  // namespace evoke
