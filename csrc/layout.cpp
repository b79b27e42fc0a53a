#include "layout.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "layout_proof.hpp"

namespace evoke {
namespace {

using Wide = __int128;  // sums of products of 64-bit numbers from peers

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string of_segment(size_t number) { return "segments[" + std::to_string(number) + "]"; }

void check_shape(const Segment& segment, size_t number, uint64_t slots) {
  const std::string name = of_segment(number);
  if (segment.item_bytes == 0 || segment.item_bytes > kMaxBlockBytes) {
    refuse(name + ": item_bytes is " + std::to_string(segment.item_bytes) + ", not 1 to " +
           std::to_string(kMaxBlockBytes));
  }
  if (segment.dims.size() > kMaxDims) {
    refuse(name + ": " + std::to_string(segment.dims.size()) + " dims, at most " +
           std::to_string(kMaxDims));
  }
  if (slots > 1 && segment.slot_stride == 0) refuse(name + ": slot_stride is 0");
  for (size_t d = 0; d < segment.dims.size(); d++) {
    const Dim& dim = segment.dims[d];
    const std::string at = name + ": dims[" + std::to_string(d) + "]";
    if (dim.count == 0 || dim.count > kMaxBlockBytes) {
      refuse(at + ": count is " + std::to_string(dim.count) + ", not 1 to " +
             std::to_string(kMaxBlockBytes));
    }
    if (dim.count > 1 && dim.stride == 0) refuse(at + ": stride is 0");
  }
}

// Merges dims that continue each other; the innermost contiguous one becomes the run.
RunSegment collapse(const Segment& segment, size_t number) {
  RunSegment out{segment.base, segment.slot_stride, {}, segment.item_bytes, 1};
  for (size_t d = segment.dims.size(); d-- > 0;) {  // innermost first
    const Dim& dim = segment.dims[d];
    if (dim.count == 1) continue;
    if (out.dims.empty() && Wide{dim.stride} == Wide{out.run_bytes}) {
      out.run_bytes *= dim.count;
    } else if (!out.dims.empty() &&
               Wide{dim.stride} == Wide{out.dims.back().stride} * Wide{out.dims.back().count}) {
      out.dims.back().count *= dim.count;
      out.runs *= dim.count;
    } else {
      out.dims.push_back(dim);
      out.runs *= dim.count;
    }
    if (out.run_bytes > kMaxBlockBytes || out.runs > kMaxRunsPerBlock) {
      refuse(of_segment(number) + ": " + std::to_string(out.runs) + " runs of " +
             std::to_string(out.run_bytes) + " bytes, at most " + std::to_string(kMaxRunsPerBlock) +
             " runs and " + std::to_string(kMaxBlockBytes) + " bytes");
    }
  }
  if (out.dims.empty()) out.dims.push_back({1, 0});
  std::reverse(out.dims.begin(), out.dims.end());
  return out;
}

void check_bounds(const RunSegment& segment, size_t number, uint64_t slots, uint64_t pool_bytes) {
  Wide low = segment.base;
  Wide high = Wide{segment.base} + segment.run_bytes;
  const auto extend = [&](uint64_t count, int64_t stride) {
    const Wide reach = Wide{count - 1} * stride;
    (reach < 0 ? low : high) += reach;
  };
  extend(slots, segment.slot_stride);
  for (const Dim& dim : segment.dims) extend(dim.count, dim.stride);
  const Wide end = pool_bytes;
  if (low >= 0 && high <= end) return;
  // Clamped for the message only; 128-bit numbers have no to_string.
  const auto shown = [](Wide n) {
    return std::to_string(static_cast<int64_t>(std::clamp<Wide>(n, INT64_MIN, INT64_MAX)));
  };
  refuse(of_segment(number) + ": bytes " + shown(low) + " to " + shown(high) +
         " are not within pool_bytes " + std::to_string(pool_bytes));
}

}  // namespace

Layout::Layout(const std::vector<Segment>& segments, uint64_t slots, uint64_t pool_bytes)
    : slots_(slots), pool_bytes_(pool_bytes) {
  if (segments.empty() || segments.size() > kMaxSegments) {
    refuse("segments: " + std::to_string(segments.size()) + ", not 1 to " +
           std::to_string(kMaxSegments));
  }
  if (slots == 0 || slots >= kMaxSlots) {
    refuse("slots is " + std::to_string(slots) + ", not 1 to " + std::to_string(kMaxSlots - 1));
  }
  if (pool_bytes > kMaxPoolBytes) {
    refuse("pool_bytes is " + std::to_string(pool_bytes) + ", at most " +
           std::to_string(kMaxPoolBytes));
  }
  for (size_t n = 0; n < segments.size(); n++) {
    check_shape(segments[n], n, slots);
    segments_.push_back(collapse(segments[n], n));
    const RunSegment& segment = segments_.back();
    check_bounds(segment, n, slots, pool_bytes);
    block_bytes_ += segment.run_bytes * segment.runs;
    runs_per_block_ += segment.runs;
    run_bytes_ = std::min(run_bytes_, segment.run_bytes);
    runs_are_stripes_ = runs_are_stripes_ && segment.run_bytes % 64 == 0;
    if (block_bytes_ > kMaxBlockBytes || runs_per_block_ > kMaxRunsPerBlock) {
      refuse(of_segment(n) + ": the block has " + std::to_string(block_bytes_) + " bytes in " +
             std::to_string(runs_per_block_) + " runs so far, at most " +
             std::to_string(kMaxBlockBytes) + " and " + std::to_string(kMaxRunsPerBlock));
    }
  }
  prove_disjoint(segments_, slots);
}

void check_slots(const std::vector<uint32_t>& slots, uint64_t limit) {
  for (size_t i = 0; i < slots.size(); i++) {
    if (slots[i] < limit) continue;
    refuse("slots[" + std::to_string(i) + "]: " + std::to_string(slots[i]) + " of a pool of " +
           std::to_string(limit));
  }
}

void check_distinct(const std::vector<uint32_t>& slots) {
  std::vector<uint32_t> sorted(slots);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("slots: " + std::to_string(*twice) + " is named twice");
}

bool RunCursor::carry() {
  const std::vector<Dim>& dims = segment_.dims;
  for (size_t d = dims.size() - 1;; d--) {
    offset_ -= static_cast<int64_t>(dims[d].count) * dims[d].stride;
    at_[d] = 0;
    if (d == 0) return false;
    offset_ += dims[d - 1].stride;
    if (++at_[d - 1] < dims[d - 1].count) return true;
  }
}

size_t RunCursor::next(int64_t* offsets, size_t capacity) {
  const size_t inner = segment_.dims.size() - 1;
  const Dim dim = segment_.dims[inner];
  size_t filled = 0;
  while (filled < capacity && !ended_) {
    const uint64_t now = std::min<uint64_t>(capacity - filled, dim.count - at_[inner]);
    for (uint64_t i = 0; i < now; i++) {
      offsets[filled + i] = offset_ + static_cast<int64_t>(i) * dim.stride;
    }
    filled += now;
    at_[inner] += now;
    offset_ += static_cast<int64_t>(now) * dim.stride;
    if (at_[inner] == dim.count) ended_ = !carry();
  }
  return filled;
}

}  // namespace evoke
