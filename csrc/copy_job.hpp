// What copy.cpp (workers) and copy_submit.cpp (requests) share.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "copy.hpp"

namespace evoke {

// CLOCK_MONOTONIC.
inline int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

struct CopyEngine::Job {
  Job(Kind its_kind, uint64_t bytes, size_t count)
      : kind(its_kind),
        block_bytes(bytes),
        blocks(count),
        outcomes(count, Outcome::kCancelled),
        sums(count, 0) {}
  const Kind kind;
  const uint64_t block_bytes;
  const size_t blocks;
  uint64_t ticket = 0;
  Transfer transfer;              // refs are resolved into:
  std::vector<uint8_t*> stored;   // tier memory (move: the source)
  std::vector<uint8_t*> targets;  // move only
  int64_t deadline_ns = 0;        // CLOCK_MONOTONIC; 0: none
  std::vector<Outcome> outcomes;
  std::vector<uint64_t> sums;
  size_t claimed = 0;               // under queue_mutex_
  std::atomic<size_t> finished{0};  // blocks
};

struct CopyEngine::Claim {
  std::shared_ptr<Job> job;
  size_t begin, end;
};

struct CopyEngine::Worker {
  std::thread thread;
  clockid_t cpu_clock;
  std::atomic<int64_t> beat_ns{0};        // when it last took or finished a block; 0: idle
  std::atomic<int64_t> ended_cpu_ns{-1};  // its CPU time once its clock is gone
};

}  // namespace evoke
