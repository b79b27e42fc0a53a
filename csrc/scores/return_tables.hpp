// From returns and survivals by class and age: what keeping a block is worth.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "return_classes.hpp"

namespace evoke {

using PerBin = std::array<double, kBins>;

// Of the blocks of a class: came back at an age in the bin; outlived the bin unused.
struct Outcomes {
  PerBin returned{};
  PerBin survived{};
};

// q[k]: the chance to come back in bin k of those that reached it. From `outcomes` and `weight`
// imagined blocks that behave like `prior`; from the most eager bin on made no more eager with age
// (pool adjacent violators, Ayer et al. 1955): few old blocks are seen, and noise there would
// outrank the young.
PerBin return_chances(const Outcomes& outcomes, const PerBin& prior, double weight);

// I[k] = max over j >= k of the hits expected in bins k..j by the block-seconds spent there.
PerBin hits_per_block_second(const PerBin& chances);

// Learns one copy of outcomes for all sets of classes.
class ReturnTables {
 public:
  ReturnTables();

  void returned(size_t gap_class, size_t count_class, size_t bin) {
    gaps_[gap_class].returned[bin] += 1;
    counts_[count_class].returned[bin] += 1;
  }
  void survived(size_t gap_class, size_t count_class, size_t bin, double blocks) {
    gaps_[gap_class].survived[bin] += blocks;
    counts_[count_class].survived[bin] += blocks;
  }
  // All that was counted weighs less by this factor from now on.
  void fade(double factor);
  // The index of every class from what is known now; a request is `blocks_mean` blocks on average.
  void refresh(double blocks_mean);

  double index(ClassSet set, size_t of_class, size_t bin) const {
    return index_[static_cast<size_t>(set)][of_class][bin];
  }

 private:
  void refresh_gaps(size_t tail, const PerBin& chances, double weight);
  void refresh_counts(size_t tail, const PerBin& chances, double weight);

  PerBin prior_;
  std::array<Outcomes, kGapClasses> gaps_;
  std::array<Outcomes, kCountClasses> counts_;
  std::array<std::vector<PerBin>, kSets> index_;
};

}  // namespace evoke
