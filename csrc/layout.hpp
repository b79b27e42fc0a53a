// Where the bytes of a block lie in a pool, in stored order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace evoke {

inline constexpr size_t kMaxSegments = 1024;
inline constexpr size_t kMaxDims = 8;                              // of one segment
inline constexpr uint64_t kMaxSlots = uint64_t{1} << 32;           // exclusive
inline constexpr uint64_t kMaxRunsPerBlock = uint64_t{1} << 20;    // after collapsing
inline constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;      // an extent never exceeds this
inline constexpr uint64_t kMaxEnumeratedRuns = uint64_t{1} << 17;  // see layout_proof.hpp
inline constexpr uint64_t kMaxPoolBytes = uint64_t{1} << 52;

struct Dim {
  uint64_t count;
  int64_t stride;  // bytes, may be negative
};

// One strided part of a slot: bytes base + slot * slot_stride + sum(index[d] * dims[d].stride),
// item_bytes at each place, dims outermost first.
struct Segment {
  int64_t base;
  int64_t slot_stride;
  std::vector<Dim> dims;
  uint64_t item_bytes;
};

// A segment after contiguous dims were collapsed into runs. dims is never empty.
struct RunSegment {
  int64_t base;
  int64_t slot_stride;
  std::vector<Dim> dims;
  uint64_t run_bytes;
  uint64_t runs;  // of one slot
};

// Immutable, so that many threads may use one.
class Layout {
 public:
  // Throws std::invalid_argument, naming segment and number, unless every byte of every slot lies
  // in [0, pool_bytes) and no two of them coincide. Below a millisecond when the strides nest; else
  // up to kMaxEnumeratedRuns runs are sorted, which takes some milliseconds: the control loop
  // waits.
  Layout(const std::vector<Segment>& segments, uint64_t slots, uint64_t pool_bytes);

  const std::vector<RunSegment>& segments() const { return segments_; }
  uint64_t block_bytes() const { return block_bytes_; }
  uint64_t slots() const { return slots_; }
  uint64_t pool_bytes() const { return pool_bytes_; }
  uint64_t runs_per_block() const { return runs_per_block_; }
  uint64_t run_bytes() const { return run_bytes_; }            // of the shortest run
  bool runs_are_stripes() const { return runs_are_stripes_; }  // each run is a multiple of 64 bytes

 private:
  std::vector<RunSegment> segments_;
  uint64_t slots_;
  uint64_t pool_bytes_;
  uint64_t block_bytes_ = 0;
  uint64_t runs_per_block_ = 0;
  uint64_t run_bytes_ = UINT64_MAX;
  bool runs_are_stripes_ = true;
};

// Walks the runs of one segment of one slot in stored order. Trivially destructible, so that a
// fault may jump out of its user.
class RunCursor {
 public:
  RunCursor(const RunSegment& segment, uint64_t slot)
      : segment_(segment),
        offset_(segment.base + static_cast<int64_t>(slot) * segment.slot_stride) {}

  // Pool offsets of the next runs, at most capacity; 0 at the end.
  size_t next(int64_t* offsets, size_t capacity);

 private:
  bool carry();  // steps the outer dims; false at the end

  const RunSegment& segment_;
  int64_t offset_;
  uint64_t at_[kMaxDims] = {};
  bool ended_ = false;
};

// Throw std::invalid_argument on a slot that is not below limit, or that is named twice.
void check_slots(const std::vector<uint32_t>& slots, uint64_t limit);
void check_distinct(const std::vector<uint32_t>& slots);

}  // namespace evoke
