#include "return_tables.hpp"

#include <algorithm>

namespace evoke {
namespace {

const Bins kAges;

// Imagined blocks behind a prior, in mean requests.
constexpr double kTailRequests = 0.1;
constexpr double kClassRequests = 20;

void add(Outcomes* sum, const Outcomes& part) {
  for (size_t bin = 0; bin < kBins; ++bin) {
    sum->returned[bin] += part.returned[bin];
    sum->survived[bin] += part.survived[bin];
  }
}

struct Pool {
  double returns;  // q * blocks
  double seconds;  // width * blocks
  size_t bins;
  double rate() const { return returns / seconds; }
};

// Makes q / width fall from its maximum on, pooling neighbours by their blocks.
void make_falling(const PerBin& blocks, PerBin* chances) {
  size_t first = 0;
  const auto rate = [&](size_t bin) { return (*chances)[bin] / kAges.width_s[bin]; };
  for (size_t bin = 1; bin < kBins; ++bin) {
    if (rate(bin) > rate(first)) first = bin;
  }
  std::array<Pool, kBins> pools;
  size_t count = 0;
  for (size_t bin = first; bin < kBins; ++bin) {
    pools[count++] = {(*chances)[bin] * blocks[bin], kAges.width_s[bin] * blocks[bin], 1};
    while (count > 1 && pools[count - 1].rate() > pools[count - 2].rate()) {
      const Pool& last = pools[--count];
      pools[count - 1].returns += last.returns;
      pools[count - 1].seconds += last.seconds;
      pools[count - 1].bins += last.bins;
    }
  }
  size_t bin = first;
  for (size_t i = 0; i < count; ++i) {
    if (pools[i].bins == 1) {
      ++bin;
      continue;
    }
    for (const size_t end = bin + pools[i].bins; bin < end; ++bin) {
      (*chances)[bin] = std::min(1.0, pools[i].rate() * kAges.width_s[bin]);
    }
  }
}

}  // namespace

PerBin return_chances(const Outcomes& outcomes, const PerBin& prior, double weight) {
  PerBin chances;
  PerBin blocks;
  for (size_t bin = 0; bin < kBins; ++bin) {
    blocks[bin] = outcomes.returned[bin] + outcomes.survived[bin] + weight;
    chances[bin] = (outcomes.returned[bin] + weight * prior[bin]) / blocks[bin];
  }
  make_falling(blocks, &chances);
  return chances;
}

PerBin hits_per_block_second(const PerBin& chances) {
  PerBin index;
  for (size_t bin = 0; bin < kBins; ++bin) {
    double alive = 1;
    double hits = 0;
    double seconds = 0;
    double best = 0;
    for (size_t end = bin; end < kBins; ++end) {
      hits += alive * chances[end];
      seconds += alive * kAges.width_s[end] * (1 - chances[end] / 2);
      best = std::max(best, hits / seconds);
      alive *= 1 - chances[end];
    }
    index[bin] = best;
  }
  return index;
}

ReturnTables::ReturnTables() {
  for (size_t bin = 0; bin < kBins; ++bin) {
    prior_[bin] = std::min(0.05, 0.02 * kAges.width_s[bin] / kAges.middle_s(bin));
  }
  for (size_t set = 0; set < kSets; ++set) index_[set].resize(kClasses[set]);
  refresh(1);
}

void ReturnTables::fade(double factor) {
  const auto scale = [factor](Outcomes& outcomes) {
    for (double& blocks : outcomes.returned) blocks *= factor;
    for (double& blocks : outcomes.survived) blocks *= factor;
  };
  std::ranges::for_each(gaps_, scale);
  std::ranges::for_each(counts_, scale);
}

void ReturnTables::refresh(double blocks_mean) {
  for (size_t tail = 0; tail < kTails; ++tail) {
    Outcomes all;
    for (size_t gap = 0; gap < kGaps; ++gap) add(&all, gaps_[gap_class(tail, gap)]);
    const PerBin chances = return_chances(all, prior_, kTailRequests * blocks_mean);
    index_[static_cast<size_t>(ClassSet::kAge)][tail] = hits_per_block_second(chances);
    refresh_gaps(tail, chances, kClassRequests * blocks_mean);
    refresh_counts(tail, chances, kClassRequests * blocks_mean);
  }
}

void ReturnTables::refresh_gaps(size_t tail, const PerBin& chances, double weight) {
  for (size_t gap = 0; gap < kGaps; ++gap) {
    const size_t at = gap_class(tail, gap);
    index_[static_cast<size_t>(ClassSet::kGap)][at] =
        hits_per_block_second(return_chances(gaps_[at], chances, weight));
  }
}

// A block is taken to be as likely to return as it was used often, until data say otherwise.
void ReturnTables::refresh_counts(size_t tail, const PerBin& chances, double weight) {
  for (size_t level = 0; level < kLevels; ++level) {
    PerBin prior;
    for (size_t bin = 0; bin < kBins; ++bin) {
      prior[bin] = 1 - std::pow(1 - chances[bin], 1 + kLevelUses[level]);
    }
    Outcomes all;
    for (size_t fresh = 0; fresh < kNews; ++fresh) {
      add(&all, counts_[count_class(tail, level, fresh)]);
    }
    const PerBin of_level = return_chances(all, prior, weight);
    for (size_t fresh = 0; fresh < kNews; ++fresh) {
      const size_t at = count_class(tail, level, fresh);
      index_[static_cast<size_t>(ClassSet::kCountNew)][at] =
          hits_per_block_second(return_chances(counts_[at], of_level, weight));
    }
  }
}

}  // namespace evoke
