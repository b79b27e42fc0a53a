// Identities by their last access, in time linear in their number: a million are sorted in the
// loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace evoke {

// values by seq_of(value), which is 32 bits, ascending; equals keep their order (radix sort).
template <typename SeqOf>
void sort_by_seq(std::vector<uint32_t>* values, SeqOf seq_of) {
  constexpr size_t kBits = 11;
  constexpr size_t kRadix = size_t{1} << kBits;
  std::vector<uint64_t> from, to(values->size());
  from.reserve(values->size());
  for (const uint32_t value : *values) from.push_back(uint64_t{seq_of(value)} << 32 | value);
  for (size_t shift = 32; shift < 64; shift += kBits) {
    std::array<uint32_t, kRadix + 1> begin{};
    for (const uint64_t one : from) ++begin[(one >> shift) % kRadix + 1];
    for (size_t i = 0; i < kRadix; ++i) begin[i + 1] += begin[i];
    for (const uint64_t one : from) to[begin[(one >> shift) % kRadix]++] = one;
    from.swap(to);
  }
  for (size_t i = 0; i < from.size(); ++i) (*values)[i] = static_cast<uint32_t>(from[i]);
}

}  // namespace evoke
