// The io_uring system calls, without a library: io_uring(7), io_uring_setup(2), io_uring_enter(2).
#pragma once

#include <linux/io_uring.h>

#include <cstdint>
#include <span>

#include "../memory.hpp"
#include "io.hpp"

namespace evoke {

struct RingResult {
  uint64_t tag;
  int result;  // bytes, or minus an errno
};

// Owned by one thread after construction.
class Ring {
 public:
  // Throws std::system_error where the kernel refuses.
  explicit Ring(unsigned entries);

  // Registers the memories in slabs; false when the kernel refuses (RLIMIT_MEMLOCK).
  bool register_buffers(std::span<const IoMemory> memories);
  // Number of the registered buffer that holds all of [memory, +bytes), or -1.
  int buffer_of(const uint8_t* memory, size_t bytes) const;

  io_uring_sqe& add(uint64_t tag);  // zeroed; submits first where the ring is full
  void submit(unsigned wait_for);
  bool take(RingResult* result);

 private:
  Fd fd_;
  Mapping rings_, entries_;
  unsigned *sq_head_, *sq_tail_, *sq_array_;
  unsigned *cq_head_, *cq_tail_;
  io_uring_sqe* sqes_;
  io_uring_cqe* cqes_;
  unsigned sq_mask_, cq_mask_;
  unsigned added_ = 0;  // not submitted yet
  std::vector<IoMemory> buffers_;
};

}  // namespace evoke
