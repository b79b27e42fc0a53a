#include "reducer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kChannelsMax = 8;
constexpr size_t kCountMax = 64;

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

// Of a finite half float of any sign.
float from_half(uint16_t bits) {
  const uint32_t size = bits & 0x7FFFu;
  const bool denormal = size < 0x400;
  const uint32_t exponent = size >= 0x7C00 ? 224u << 23 : denormal ? 113u << 23 : 112u << 23;
  const float value = std::bit_cast<float>((size << 13) + exponent) - (denormal ? 0x1p-14f : 0.0f);
  return bits & 0x8000 ? -value : value;
}

// Nearest, ties to even; of numbers from 0 to 65504.
uint16_t to_half(float value) {
  if (value < 0x1p-14f) return static_cast<uint16_t>(std::nearbyint(value * 0x1p24f));
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t odd = (bits >> 13) & 1;
  return static_cast<uint16_t>((bits - (112u << 23) + 0xFFF + odd) >> 13);
}

// With a fixed number of partial sums, so that the compiler can use vector registers.
float sum(const float* values, size_t count) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  float total = 0;
  for (; i < count; ++i) total += values[i];
  for (const float lane : lanes) total += lane;
  return total;
}

}  // namespace

Reducer::Reducer(size_t layers, size_t heads, size_t block_tokens, std::vector<Channel> channels)
    : layers_(layers),
      heads_(heads),
      block_tokens_(block_tokens),
      channels_(std::move(channels)),
      added_(layers, 0) {
  if (layers == 0 || layers > 4096) refuse("layers: " + std::to_string(layers));
  if (heads == 0 || heads > 4096) refuse("heads: " + std::to_string(heads));
  if (block_tokens == 0 || block_tokens > 65536) {
    refuse("block_tokens: " + std::to_string(block_tokens));
  }
  if (channels_.empty() || channels_.size() > kChannelsMax) {
    refuse("channels: " + std::to_string(channels_.size()) + ", allowed 1 to 8");
  }
  for (const Channel& channel : channels_) {
    if (channel.weights.size() != layers * heads) {
      refuse("weights: " + std::to_string(channel.weights.size()) + " numbers, " +
             std::to_string(layers) + " layers of " + std::to_string(heads) + " heads");
    }
    for (const float weight : channel.weights) {
      if (!(weight >= 0 && weight <= 1e6f)) refuse("weights: " + std::to_string(weight));
    }
    const auto taking =
        std::ranges::count_if(channel.weights, [](float weight) { return weight > 0; });
    if (taking == 0) refuse("weights: no head takes part in a channel");
    if (channel.count == 0 || channel.count > kCountMax) {
      refuse("count: " + std::to_string(channel.count) + ", allowed 1 to 64");
    }
  }
}

bool Reducer::takes_part(size_t layer, size_t head) const {
  return std::ranges::any_of(channels_, [&](const Channel& channel) {
    return channel.weights[layer * heads_ + head] > 0;
  });
}

void Reducer::begin(size_t tokens) {
  tokens_ = tokens;
  blocks_ = (tokens + block_tokens_ - 1) / block_tokens_;
  totals_.assign(channels_.size(), {});
  for (size_t i = 0; i < channels_.size(); ++i) {
    const size_t kept = channels_[i].fold == Fold::kLargest ? channels_[i].count : 1;
    totals_[i].assign(kept * blocks_, 0);
  }
}

void Reducer::add(size_t layer, const LayerWeights& weights) {
  if (layer >= layers_)
    refuse("layer: " + std::to_string(layer) + " of " + std::to_string(layers_));
  if (added_[layer]) refuse("layer: " + std::to_string(layer) + " is added twice");
  if (weights.heads != heads_ || weights.rows == 0 || weights.tokens == 0) {
    refuse("weights: " + std::to_string(weights.heads) + " heads x " +
           std::to_string(weights.rows) + " rows x " + std::to_string(weights.tokens) +
           " tokens, expected " + std::to_string(heads_) + " heads");
  }
  const bool first = std::ranges::none_of(added_, [](uint8_t added) { return added != 0; });
  if (!first && weights.tokens != tokens_) {
    refuse("weights: " + std::to_string(weights.tokens) + " tokens, the layers before had " +
           std::to_string(tokens_));
  }
  if (first) begin(weights.tokens);
  pending_.clear();
  for (size_t head = 0; head < heads_; ++head) {
    if (!takes_part(layer, head)) continue;
    sum_blocks(weights, head);
    check(layer, head);
    pending_.insert(pending_.end(), mass_.begin(), mass_.end());
  }
  size_t taken = 0;
  for (size_t head = 0; head < heads_; ++head) {
    if (!takes_part(layer, head)) continue;
    std::copy_n(pending_.begin() + static_cast<ptrdiff_t>(taken++ * blocks_), blocks_,
                mass_.begin());
    fold(layer, head);
  }
  added_[layer] = 1;
}

void Reducer::sum_blocks(const LayerWeights& weights, size_t head) {
  mass_.assign(blocks_, 0);
  constexpr ptrdiff_t kSize = sizeof(float);
  const bool aligned = reinterpret_cast<uintptr_t>(weights.at) % alignof(float) == 0 &&
                       weights.head_stride % kSize == 0 && weights.row_stride % kSize == 0;
  const bool plain = weights.element == Element::kFloat && weights.token_stride == kSize && aligned;
  if (!plain) row_.resize(weights.tokens);
  for (size_t row = 0; row < weights.rows; ++row) {
    const char* from = weights.at + static_cast<ptrdiff_t>(head) * weights.head_stride +
                       static_cast<ptrdiff_t>(row) * weights.row_stride;
    const float* values = reinterpret_cast<const float*>(from);
    if (!plain) {
      for (size_t i = 0; i < weights.tokens; ++i, from += weights.token_stride) {
        if (weights.element == Element::kFloat) {
          std::memcpy(&row_[i], from, sizeof(float));
        } else {
          uint16_t bits;
          std::memcpy(&bits, from, sizeof(bits));
          row_[i] = from_half(bits);
        }
      }
      values = row_.data();
    }
    for (size_t block = 0; block < blocks_; ++block) {
      const size_t begin = block * block_tokens_;
      mass_[block] += sum(values + begin, std::min(block_tokens_, weights.tokens - begin));
    }
  }
  if (weights.rows > 1) {
    const float share = 1.0f / static_cast<float>(weights.rows);
    for (float& mass : mass_) mass *= share;
  }
}

void Reducer::check(size_t layer, size_t head) const {
  constexpr float kMost = 1.01f;  // a softmax in half precision may sum to a little more than 1
  const auto bad = std::ranges::find_if(mass_, [](float m) { return !(m >= 0 && m <= kMost); });
  if (bad == mass_.end()) return;
  refuse("weights: layer " + std::to_string(layer) + " head " + std::to_string(head) + " block " +
         std::to_string(bad - mass_.begin()) + " has mass " + std::to_string(*bad) +
         ", allowed 0 to 1");
}

void Reducer::fold(size_t layer, size_t head) {
  for (size_t i = 0; i < channels_.size(); ++i) {
    const float weight = channels_[i].weights[layer * heads_ + head];
    if (!(weight > 0)) continue;
    float* total = totals_[i].data();
    const float* mass = mass_.data();
    switch (channels_[i].fold) {
      case Fold::kMean:
        for (size_t b = 0; b < blocks_; ++b) total[b] += weight * mass[b];
        break;
      case Fold::kMax:
        for (size_t b = 0; b < blocks_; ++b) total[b] = std::max(total[b], mass[b]);
        break;
      case Fold::kLargest:
        sinking_ = mass_;
        // Row r holds the r-th largest of each block: the newcomer sinks to its place.
        for (size_t r = 0; r < channels_[i].count; ++r) {
          float* kept = total + r * blocks_;
          float* sinking = sinking_.data();
          for (size_t b = 0; b < blocks_; ++b) {
            const float low = std::min(kept[b], sinking[b]);
            kept[b] = std::max(kept[b], sinking[b]);
            sinking[b] = low;
          }
        }
        break;
    }
  }
}

std::vector<uint16_t> Reducer::take() {
  for (size_t layer = 0; layer < layers_; ++layer) {
    bool needed = false;
    for (size_t head = 0; head < heads_; ++head) needed |= takes_part(layer, head);
    if (needed && !added_[layer]) refuse("layer: " + std::to_string(layer) + " was not added");
  }
  std::vector<uint16_t> halves;
  halves.reserve(channels_.size() * blocks_);
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_[i];
    const auto taking = static_cast<size_t>(
        std::ranges::count_if(channel.weights, [](float weight) { return weight > 0; }));
    const size_t rows = channel.fold == Fold::kLargest ? std::min(channel.count, taking) : 1;
    const float whole = channel.fold == Fold::kMean
                            ? std::accumulate(channel.weights.begin(), channel.weights.end(), 0.0f)
                            : static_cast<float>(rows);
    for (size_t block = 0; block < blocks_; ++block) {
      float total = 0;
      for (size_t row = 0; row < rows; ++row) total += totals_[i][row * blocks_ + block];
      halves.push_back(to_half(std::min(1.0f, total / whole)));
    }
  }
  std::ranges::fill(added_, 0);
  return halves;
}

}  // namespace evoke
