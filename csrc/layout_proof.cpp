#include "layout_proof.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

// The places of one segment with all strides made positive, dims by falling stride.
struct Places {
  size_t segment;
  uint64_t low;
  uint64_t run_bytes;
  std::vector<Dim> dims;

  uint64_t end() const {
    uint64_t at = low + run_bytes;
    for (const Dim& dim : dims) at += (dim.count - 1) * static_cast<uint64_t>(dim.stride);
    return at;
  }
};

Places make_places(const RunSegment& segment, size_t number, uint64_t slots) {
  Places out{number, 0, segment.run_bytes, {}};
  int64_t low = segment.base;
  const auto add = [&](Dim dim) {
    if (dim.count == 1) return;
    if (dim.stride < 0) {
      low += static_cast<int64_t>(dim.count - 1) * dim.stride;
      dim.stride = -dim.stride;
    }
    out.dims.push_back(dim);
  };
  for (const Dim& dim : segment.dims) add(dim);
  add({slots, segment.slot_stride});
  out.low = static_cast<uint64_t>(low);
  std::stable_sort(out.dims.begin(), out.dims.end(),
                   [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  return out;
}

class Prover {
 public:
  void prove(std::vector<Places> places);

 private:
  void prove_component(const Places* first, const Places* last);
  void enumerate(const Places* first, const Places* last);

  uint64_t enumerated_ = 0;
};

[[noreturn]] void refuse_overlap(size_t a, size_t b, uint64_t offset) {
  throw std::invalid_argument("segments[" + std::to_string(std::min(a, b)) + "] and segments[" +
                              std::to_string(std::max(a, b)) + "]: bytes coincide at pool offset " +
                              std::to_string(offset));
}

// Splits into groups whose address ranges are disjoint, and proves each group.
void Prover::prove(std::vector<Places> places) {
  std::sort(places.begin(), places.end(),
            [](const Places& a, const Places& b) { return a.low < b.low; });
  for (size_t first = 0; first < places.size();) {
    uint64_t end = places[first].end();
    size_t last = first + 1;
    for (; last < places.size() && places[last].low < end; last++) {
      end = std::max(end, places[last].end());
    }
    prove_component(&places[first], &places[0] + last);
    first = last;
  }
}

void Prover::prove_component(const Places* first, const Places* last) {
  if (last - first == 1 && first->dims.empty()) return;
  std::vector<Places> inner(first, last);
  uint64_t end = 0;
  for (Places& places : inner) {
    if (places.dims.empty() || places.dims.front().stride != inner.front().dims.front().stride) {
      return enumerate(first, last);
    }
  }
  const auto stride = static_cast<uint64_t>(inner.front().dims.front().stride);
  for (Places& places : inner) {
    places.dims.erase(places.dims.begin());
    end = std::max(end, places.end());
  }
  if (end - inner.front().low > stride) return enumerate(first, last);
  prove(std::move(inner));
}

// Run starts and the segment they belong to in one word each: offsets are below 2^52.
constexpr unsigned kSegmentBits = 10;
static_assert(kMaxSegments <= (1U << kSegmentBits) && kMaxPoolBytes <= (uint64_t{1} << 52));

void list_starts(const Places& places, std::vector<uint64_t>& starts) {
  std::vector<uint64_t> at{places.low};
  for (const Dim& dim : places.dims) {
    const size_t known = at.size();
    at.reserve(known * dim.count);
    for (uint64_t i = 1; i < dim.count; i++) {
      for (size_t k = 0; k < known; k++) {
        at.push_back(at[k] + i * static_cast<uint64_t>(dim.stride));
      }
    }
  }
  for (const uint64_t start : at) starts.push_back(start << kSegmentBits | places.segment);
}

// Sorting by bytes: a comparison sort of the largest list would take four times as long.
void sort_starts(std::vector<uint64_t>& starts) {
  constexpr unsigned kDigitBits = 11;
  std::vector<uint64_t> other(starts.size());
  uint64_t used = 0;
  for (const uint64_t start : starts) used |= start;
  for (unsigned shift = 0; shift < 64 && used >> shift != 0; shift += kDigitBits) {
    std::array<size_t, (1U << kDigitBits) + 1> begins{};
    const auto digit = [shift](uint64_t start) {
      return start >> shift & ((1U << kDigitBits) - 1);
    };
    for (const uint64_t start : starts) begins[digit(start) + 1]++;
    for (size_t d = 1; d < begins.size(); d++) begins[d] += begins[d - 1];
    for (const uint64_t start : starts) other[begins[digit(start)]++] = start;
    starts.swap(other);
  }
}

void Prover::enumerate(const Places* first, const Places* last) {
  std::array<uint64_t, kMaxSegments> run_bytes{};
  for (const Places* p = first; p != last; p++) {
    unsigned __int128 runs = 1;
    for (const Dim& dim : p->dims) runs *= dim.count;  // at most 2^20 a block x 2^32 slots
    if (enumerated_ + runs > kMaxEnumeratedRuns) {
      throw std::invalid_argument("segments[" + std::to_string(p->segment) +
                                  "]: strides do not nest and there are more than " +
                                  std::to_string(kMaxEnumeratedRuns) + " runs to compare");
    }
    enumerated_ += static_cast<uint64_t>(runs);
    run_bytes[p->segment] = p->run_bytes;
  }
  std::vector<uint64_t> starts;
  for (const Places* p = first; p != last; p++) list_starts(*p, starts);
  sort_starts(starts);
  for (size_t i = 1; i < starts.size(); i++) {
    const size_t before = starts[i - 1] & (kMaxSegments - 1);
    const uint64_t start = starts[i] >> kSegmentBits;
    if ((starts[i - 1] >> kSegmentBits) + run_bytes[before] > start) {
      refuse_overlap(before, starts[i] & (kMaxSegments - 1), start);
    }
  }
}

}  // namespace

void prove_disjoint(const std::vector<RunSegment>& segments, uint64_t slots) {
  std::vector<Places> places;
  places.reserve(segments.size());
  for (size_t n = 0; n < segments.size(); n++) places.push_back(make_places(segments[n], n, slots));
  Prover().prove(std::move(places));
}

}  // namespace evoke
