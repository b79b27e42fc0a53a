#include "observe.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

constexpr uint16_t kHalfOne = 0x3C00;  // above: more than 1, infinite, not a number, or negative

// Of a half float that is not negative and finite. Denormal ones are made by a subtraction: as
// denormal single ones they would cost a hundred cycles each.
inline float from_half(uint16_t bits) {
  const bool denormal = bits < 0x400;
  const uint32_t exponent = denormal ? 113u << 23 : 112u << 23;
  const float moved = std::bit_cast<float>((static_cast<uint32_t>(bits) << 13) + exponent);
  return moved - (denormal ? 0x1p-14f : 0.0f);
}

std::string half_text(uint16_t bits) {
  if ((bits & 0x7C00) == 0x7C00) return bits & 0x3FF ? "nan" : bits & 0x8000 ? "-inf" : "inf";
  const float size = from_half(bits & 0x7FFF);
  return std::to_string(bits & 0x8000 ? -size : size);
}

// ln(e^a + e^b) to single precision in the smaller of the two: what is added is a half float.
inline double log_add_quickly(double a, double b) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low < high - 40) return high;
  return high + static_cast<double>(std::log1p(std::exp(static_cast<float>(low - high))));
}

}  // namespace

SequenceSignal::SequenceSignal(const SignalRules& rules) : rules_(rules) {
  if (!(rules.alpha > 0 && rules.alpha < 1)) {
    throw std::invalid_argument("alpha: " + std::to_string(rules.alpha) +
                                " is not between 0 and 1");
  }
  if (!(rules.knee >= 0 && rules.knee < 1e9)) {
    throw std::invalid_argument("knee: " + std::to_string(rules.knee) + " is not from 0 to 1e9");
  }
}

void SequenceSignal::assign(size_t first, std::span<const uint32_t> ids) {
  if (first > size()) {
    throw std::invalid_argument("first: " + std::to_string(first) + ", the sequence has " +
                                std::to_string(size()) + " blocks");
  }
  ids_.resize(first);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  for (const uint32_t id : ids) {
    if (id != kNoId) ids_below_ = std::max(ids_below_, size_t{id} + 1);
  }
  for (std::vector<float>* column : {&sums_, &mass_}) {
    column->resize(first);
    column->resize(size(), 0);
  }
  accesses_.resize(first);
  accesses_.resize(size(), 0);
  absent_.resize(first);
  absent_.resize(size(), 0);
}

void SequenceSignal::check(std::span<const uint16_t> masses, size_t channels) const {
  if (masses.size() != channels * size()) {
    throw std::invalid_argument("signal: " + std::to_string(masses.size()) + " numbers, " +
                                std::to_string(channels) + " channels of " +
                                std::to_string(size()) + " blocks take " +
                                std::to_string(channels * size()));
  }
  // As signed numbers, which have a vector instruction for it everywhere: negative ones are less.
  int16_t largest = 0;
  int16_t least = 0;
  for (const uint16_t bits : masses) {
    largest = std::max(largest, static_cast<int16_t>(bits));
    least = std::min(least, static_cast<int16_t>(bits));
  }
  if (largest <= kHalfOne && least == 0) return;
  const size_t at = static_cast<size_t>(
      std::ranges::find_if(masses, [](uint16_t bits) { return bits > kHalfOne; }) - masses.begin());
  throw std::invalid_argument("signal: channel " + std::to_string(at / size()) + " block " +
                              std::to_string(at % size()) + " is " + half_text(masses[at]) +
                              ", allowed 0 to 1");
}

void SequenceSignal::combine(std::span<const uint16_t> masses, size_t channels) {
  const size_t count = size();
  const uint16_t* bits = masses.data();
  float* mass = mass_.data();
  for (size_t i = 0; i < count; ++i) mass[i] = from_half(bits[i]);
  const auto knee =
      static_cast<float>(rules_.knee / static_cast<double>(std::max<size_t>(1, count)));
  for (size_t channel = 1; channel < channels; ++channel) {
    bits += count;
    for (size_t i = 0; i < count; ++i) mass[i] = std::max(mass[i], from_half(bits[i]) - knee);
  }
}

void SequenceSignal::report(std::span<const uint16_t> masses, size_t channels, uint32_t steps,
                            std::span<const uint8_t> present) {
  const size_t count = size();
  if (!present.empty() && present.size() != (count + 7) / 8) {
    throw std::invalid_argument("present: " + std::to_string(present.size()) + " bytes, " +
                                std::to_string(count) + " blocks take " +
                                std::to_string((count + 7) / 8));
  }
  check(masses, channels);
  combine(masses, channels);
  const double kept = std::exp(std::log1p(-rules_.alpha) * steps);
  const auto keep = static_cast<float>(kept);
  const auto gain = static_cast<float>(1 - kept);
  const auto share = 1.0f / static_cast<float>(std::max<size_t>(1, count));
  pending_ = true;
  any_absent_ = !present.empty();
  if (any_absent_) {
    for (size_t i = 0; i < count; ++i) absent_[i] = !(present[i / 8] >> (i % 8) & 1);
    add_some(keep, gain);
  } else {
    float* sums = sums_.data();
    const float* mass = mass_.data();
    for (size_t i = 0; i < count; ++i) sums[i] = sums[i] * keep + gain * mass[i];
  }
  count_accesses(share);
}

void SequenceSignal::count_accesses(float share) {
  uint32_t* accesses = accesses_.data();
  const float* mass = mass_.data();
  const size_t count = size();
  for (size_t i = 0; i < count; ++i) accesses[i] += mass[i] >= share;
}

void SequenceSignal::add_some(float keep, float gain) {
  for (size_t i = 0; i < size(); ++i) {
    if (absent_[i]) {
      mass_[i] = 0;
      if (rules_.absent == Absent::kReset) sums_[i] = 0;
      if (rules_.absent == Absent::kFreeze) continue;
    }
    sums_[i] = sums_[i] * keep + gain * mass_[i];
  }
}

uint32_t SequenceSignal::fold(double clock, double elapsed, uint32_t seq, Identities* known,
                              const Scores& scores, Order* order) {
  if (ids_below_ > known->size()) {
    throw std::invalid_argument("known: " + std::to_string(known->size()) +
                                " identities, the sequence names " +
                                std::to_string(ids_below_ - 1));
  }
  const double frozen = elapsed * scores.lambda();
  uint32_t used = 0;
  for (size_t i = size(); i-- > 0;) {
    const uint32_t id = ids_[i];
    if (id == kNoId) continue;
    double& key = known->key[id];
    if (any_absent_ && absent_[i]) {
      if (rules_.absent == Absent::kFreeze) key += frozen;
      if (rules_.absent == Absent::kReset) {
        const auto forget = [&key] { key = kNeverKey; };
        if (order) {
          order->lower(id, forget);
        } else {
          forget();
        }
      }
    }
    if (sums_[i] > 0) {
      const double log_score = std::log(sums_[i]);
      key = log_add_quickly(key, scores.key_of(static_cast<double>(log_score), clock));
      sums_[i] = 0;
    }
    if (accesses_[i] > 0) {
      known->at_clock[id] = clock;
      known->seq[id] = seq + used++;
      known->count[id] =
          static_cast<uint16_t>(std::min(uint32_t{0xFFFF}, known->count[id] + accesses_[i]));
      accesses_[i] = 0;
      if (order) order->touched(id);
    } else if (order) {
      order->rescored(id);
    }
  }
  pending_ = false;
  return used;
}

}  // namespace evoke
