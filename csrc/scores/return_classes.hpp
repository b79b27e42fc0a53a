// What the return index tells apart: bins of age, and kinds of chains by how they were last used.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace evoke {

// Bin 0 is ages below 1 s; bin k > 0 begins at 1.5^(k-1) s. The last is open: who is older than its
// upper edge stays in it.
constexpr size_t kBins = 23;
constexpr double kBinRatio = 1.5;

struct Bins {
  Bins() {
    for (size_t bin = 0; bin < kBins; ++bin) {
      upper_s[bin] = std::pow(kBinRatio, static_cast<double>(bin));
      width_s[bin] = bin == 0 ? upper_s[0] : upper_s[bin] - upper_s[bin - 1];
    }
  }
  double middle_s(size_t bin) const { return upper_s[bin] - width_s[bin] / 2; }

  std::array<double, kBins> upper_s;
  std::array<double, kBins> width_s;
};

// Earlier accesses of a block: 0, 1, 2, 3, 4-5, 6-8, 9-16, 17 and more.
constexpr size_t kLevels = 8;
constexpr std::array<uint32_t, kLevels> kLevelFrom = {0, 1, 2, 3, 4, 6, 9, 17};
constexpr std::array<double, kLevels> kLevelUses = {0, 1, 2, 3, 4.5, 7, 12, 20};  // typical

inline size_t level_of(uint32_t earlier) {
  size_t level = kLevels - 1;
  while (earlier < kLevelFrom[level]) --level;
  return level;
}

// Blocks of a request that nobody remembers: 0-1, 2-4, 5-16, 17-64, more.
constexpr size_t kNews = 5;
inline size_t new_of(size_t blocks) {
  return blocks < 2 ? 0 : blocks < 5 ? 1 : blocks < 17 ? 2 : blocks < 65 ? 3 : 4;
}

// Seconds since the request that this one continues: none (0), below 16, 64, 256, more.
constexpr size_t kGaps = 5;
inline size_t gap_of(double gap_s) { return gap_s < 16 ? 1 : gap_s < 64 ? 2 : gap_s < 256 ? 3 : 4; }

// The sets of classes. A tail is the last block of its request: tail + 2 * the rest.
enum class ClassSet : uint8_t { kAge, kGap, kCountNew };
constexpr size_t kSets = 3;
constexpr size_t kTails = 2;
constexpr size_t kGapClasses = kTails * kGaps;
constexpr size_t kCountClasses = kTails * kLevels * kNews;
constexpr std::array<size_t, kSets> kClasses = {kTails, kGapClasses, kCountClasses};

inline size_t gap_class(size_t tail, size_t gap) { return tail + kTails * gap; }
inline size_t count_class(size_t tail, size_t level, size_t fresh) {
  return tail + kTails * (level + kLevels * fresh);
}

}  // namespace evoke
