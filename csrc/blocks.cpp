#include "blocks.hpp"

#include <algorithm>
#include <cstring>

namespace evoke {
namespace {

constexpr size_t kBatchRuns = 128;    // offsets made ahead of a kernel
constexpr size_t kStageBytes = 4096;  // stays in the first-level cache
constexpr size_t kShortBytes = 256;
constexpr size_t kDirectBytes = 1024;  // from here on a run goes past the stage

// Copies bytes of [sizeof(Word), 2 * sizeof(Word)] by two words that may overlap.
template <typename Word>
inline void copy_two(uint8_t* target, const uint8_t* source, size_t bytes) {
  Word first, last;
  std::memcpy(&first, source, sizeof first);
  std::memcpy(&last, source + bytes - sizeof last, sizeof last);
  std::memcpy(target, &first, sizeof first);
  std::memcpy(target + bytes - sizeof last, &last, sizeof last);
}

// memcpy for runs: a call for each few bytes would cost several times the copy.
inline void copy_run(uint8_t* target, const uint8_t* source, size_t bytes) {
  if (bytes > kShortBytes) {
    std::memcpy(target, source, bytes);
  } else if (bytes >= 16) {
    for (size_t at = 0; at + 16 < bytes; at += 16) {
      std::memcpy(target + at, source + at, 16);
      asm volatile("" ::: "memory");  // else gcc makes the loop a `rep movs`, 20 ns a run
    }
    std::memcpy(target + bytes - 16, source + bytes - 16, 16);
  } else if (bytes >= 8) {
    copy_two<uint64_t>(target, source, bytes);
  } else if (bytes >= 4) {
    copy_two<uint32_t>(target, source, bytes);
  } else {
    for (size_t i = 0; i < bytes; i++) target[i] = source[i];
  }
}

// Calls use(first pool offset of the batch, runs in it, run_bytes) for all runs in stored order.
template <typename Use>
inline void for_each_batch(const Layout& layout, uint64_t slot, Use use) {
  int64_t offsets[kBatchRuns];
  for (const RunSegment& segment : layout.segments()) {
    RunCursor cursor(segment, slot);
    while (const size_t count = cursor.next(offsets, kBatchRuns)) {
      use(offsets, count, segment.run_bytes);
    }
  }
}

// Gathers runs of any size: collects them until whole stripes can be moved on.
class Stage {
 public:
  Stage(const Kernel& kernel, uint8_t* target) : kernel_(kernel), target_(target) {}

  void append(const uint8_t* source, size_t bytes) {
    if (bytes < kDirectBytes && bytes < kStageBytes - held_) {
      copy_run(buffer_ + held_, source, bytes);
      held_ += bytes;
    } else {
      append_parts(source, bytes);
    }
  }

  // block_bytes is what append got in all.
  uint64_t finish(uint64_t block_bytes) {
    if (block_bytes < kSumMinBytes) {
      std::memcpy(target_, buffer_, block_bytes);
      return xxh3_64(buffer_, block_bytes);
    }
    flush();
    std::memcpy(target_, buffer_, held_);
    return xxh3_finish(sum_, buffer_, held_);
  }

 private:
  __attribute__((noinline)) void append_parts(const uint8_t* source, size_t bytes) {
    while (bytes > 0) {
      const bool direct = bytes >= kDirectBytes;
      if (direct && held_ % kStripeBytes == 0) {
        flush();
        const size_t stripes = bytes / kStripeBytes;
        copy_stripes(kernel_, target_, source, stripes, sum_);
        target_ += stripes * kStripeBytes;
        source += stripes * kStripeBytes;
        bytes -= stripes * kStripeBytes;
        continue;
      }
      const size_t room = direct ? kStripeBytes - held_ % kStripeBytes : kStageBytes - held_;
      const size_t now = std::min(bytes, room);
      copy_run(buffer_ + held_, source, now);
      held_ += now;
      source += now;
      bytes -= now;
      if (held_ == kStageBytes) flush();
    }
  }

  // Moves on whole stripes; what is left of one moves to the front.
  void flush() {
    const size_t whole = held_ / kStripeBytes * kStripeBytes;
    if (whole == 0) return;
    copy_stripes(kernel_, target_, buffer_, whole / kStripeBytes, sum_);
    target_ += whole;
    held_ -= whole;
    std::memcpy(buffer_, buffer_ + whole, held_);
  }

  const Kernel& kernel_;
  uint8_t* target_;
  size_t held_ = 0;
  Xxh3 sum_;
  alignas(64) uint8_t buffer_[kStageBytes];
};

// Sums a contiguous block a little ahead of its use, so that it is read from memory once.
class SumAhead {
 public:
  SumAhead(const Kernel& kernel, const uint8_t* stored, uint64_t block_bytes)
      : kernel_(kernel), stored_(stored), block_bytes_(block_bytes) {}

  void reach(uint64_t end) {
    const uint64_t whole = block_bytes_ / kStripeBytes * kStripeBytes;
    while (summed_ < std::min(end, whole)) {
      const uint64_t now = std::min<uint64_t>(kStageBytes, whole - summed_);
      kernel_.feed(sum_, stored_ + summed_, now / kStripeBytes);
      summed_ += now;
    }
  }

  uint64_t finish() {
    if (block_bytes_ < kSumMinBytes) return xxh3_64(stored_, block_bytes_);
    reach(block_bytes_);
    return xxh3_finish(sum_, stored_ + summed_, block_bytes_ - summed_);
  }

 private:
  const Kernel& kernel_;
  const uint8_t* stored_;
  uint64_t block_bytes_;
  uint64_t summed_ = 0;
  Xxh3 sum_;
};

uint64_t scatter_odd_runs(const Kernel& kernel, const Layout& layout, uint8_t* pool, uint64_t slot,
                          const uint8_t* stored) {
  SumAhead sum(kernel, stored, layout.block_bytes());
  uint64_t at = 0;
  for_each_batch(layout, slot, [&](const int64_t* offsets, size_t count, size_t run_bytes) {
    for (size_t r = 0; r < count; r++) {
      for (size_t done = 0; done < run_bytes;) {
        const size_t now = std::min(run_bytes - done, kStageBytes);
        sum.reach(at + now);
        copy_run(pool + offsets[r] + done, stored + at, now);
        done += now;
        at += now;
      }
    }
  });
  return sum.finish();
}

bool can_fuse(const Layout& layout) {
  return layout.runs_are_stripes() && layout.block_bytes() >= kSumMinBytes;
}

}  // namespace

uint64_t gather_block(const Kernel& kernel, const Layout& layout, const uint8_t* pool,
                      uint64_t slot, uint8_t* stored) {
  uint64_t result;
  if (can_fuse(layout)) {
    Xxh3 sum;
    for_each_batch(layout, slot, [&](const int64_t* offsets, size_t count, size_t run_bytes) {
      kernel.gather({stored, const_cast<uint8_t*>(pool), offsets, count, run_bytes}, sum);
      stored += count * run_bytes;
    });
    result = xxh3_finish(sum, nullptr, 0);
  } else {
    Stage stage(kernel, stored);
    for_each_batch(layout, slot, [&](const int64_t* offsets, size_t count, size_t run_bytes) {
      for (size_t r = 0; r < count; r++) stage.append(pool + offsets[r], run_bytes);
    });
    result = stage.finish(layout.block_bytes());
  }
  kernel.fence();
  return result;
}

uint64_t scatter_block(const Kernel& kernel, const Layout& layout, uint8_t* pool, uint64_t slot,
                       const uint8_t* stored) {
  uint64_t result;
  if (can_fuse(layout)) {
    Xxh3 sum;
    auto* at = const_cast<uint8_t*>(stored);  // scatter only reads it
    for_each_batch(layout, slot, [&](const int64_t* offsets, size_t count, size_t run_bytes) {
      kernel.scatter({at, pool, offsets, count, run_bytes}, sum);
      at += count * run_bytes;
    });
    result = xxh3_finish(sum, nullptr, 0);
  } else {
    result = scatter_odd_runs(kernel, layout, pool, slot, stored);
  }
  kernel.fence();
  return result;
}

uint64_t move_block(const Kernel& kernel, uint8_t* target, const uint8_t* source, uint64_t bytes) {
  Stage stage(kernel, target);
  stage.append(source, bytes);
  const uint64_t sum = stage.finish(bytes);
  kernel.fence();
  return sum;
}

}  // namespace evoke
