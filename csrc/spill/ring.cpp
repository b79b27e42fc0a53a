#if __has_include(<linux/io_uring.h>)
#include "ring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace evoke {
namespace {

constexpr size_t kSlabBytes = size_t{1} << 30;  // the most that one registered buffer may have

unsigned load(const unsigned* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
void store(unsigned* at, unsigned value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

Mapping map_ring(int fd, size_t bytes, off_t which) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, which);
  if (at == MAP_FAILED) throw_system_error(errno, "io_uring ring");
  return {at, bytes};
}

}  // namespace

Ring::Ring(unsigned entries) {
  io_uring_params params{};
  fd_ = Fd(static_cast<int>(syscall(__NR_io_uring_setup, entries, &params)));
  if (fd_.get() < 0) throw_system_error(errno, "io_uring_setup");
  if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) throw_system_error(ENOSYS, "io_uring");
  const size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  rings_ = map_ring(fd_.get(), std::max(sq_bytes, cq_bytes), IORING_OFF_SQ_RING);
  entries_ = map_ring(fd_.get(), params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  uint8_t* base = rings_.data();
  sq_head_ = reinterpret_cast<unsigned*>(base + params.sq_off.head);
  sq_tail_ = reinterpret_cast<unsigned*>(base + params.sq_off.tail);
  sq_array_ = reinterpret_cast<unsigned*>(base + params.sq_off.array);
  cq_head_ = reinterpret_cast<unsigned*>(base + params.cq_off.head);
  cq_tail_ = reinterpret_cast<unsigned*>(base + params.cq_off.tail);
  cqes_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
  sqes_ = reinterpret_cast<io_uring_sqe*>(entries_.data());
  sq_mask_ = params.sq_entries - 1;
  cq_mask_ = params.cq_entries - 1;
}

bool Ring::register_buffers(std::span<const IoMemory> memories) {
  std::vector<iovec> slabs;
  for (const IoMemory& memory : memories) {
    for (uint64_t at = 0; at < memory.bytes; at += kSlabBytes) {
      buffers_.push_back({memory.address + at, std::min<uint64_t>(kSlabBytes, memory.bytes - at)});
      slabs.push_back({buffers_.back().address, buffers_.back().bytes});
    }
  }
  if (slabs.empty()) return false;
  const long refused = syscall(__NR_io_uring_register, fd_.get(), IORING_REGISTER_BUFFERS,
                               slabs.data(), static_cast<unsigned>(slabs.size()));
  if (refused != 0) buffers_.clear();
  return refused == 0;
}

int Ring::buffer_of(const uint8_t* memory, size_t bytes) const {
  for (size_t i = 0; i < buffers_.size(); i++) {
    const IoMemory& buffer = buffers_[i];
    if (memory >= buffer.address && memory + bytes <= buffer.address + buffer.bytes) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

io_uring_sqe& Ring::add(uint64_t tag) {
  const unsigned tail = *sq_tail_ + added_;
  if (tail - load(sq_head_) > sq_mask_) {
    submit(0);
    return add(tag);
  }
  io_uring_sqe& entry = sqes_[tail & sq_mask_];
  std::memset(&entry, 0, sizeof entry);
  entry.user_data = tag;
  sq_array_[tail & sq_mask_] = tail & sq_mask_;
  added_++;
  return entry;
}

void Ring::submit(unsigned wait_for) {
  store(sq_tail_, *sq_tail_ + added_);
  const unsigned flags = wait_for > 0 ? IORING_ENTER_GETEVENTS : 0;
  added_ = 0;
  for (;;) {
    const unsigned unsubmitted = *sq_tail_ - load(sq_head_);
    const long done =
        syscall(__NR_io_uring_enter, fd_.get(), unsubmitted, wait_for, flags, nullptr, size_t{0});
    if (done >= 0 && static_cast<unsigned>(done) >= unsubmitted) return;
    // Interrupted or short of memory for a moment: what ended meanwhile is taken first.
    if (done < 0 && *cq_head_ != load(cq_tail_)) return;
    if (done < 0) usleep(1000);
  }
}

bool Ring::take(RingResult* result) {
  const unsigned head = *cq_head_;
  if (head == load(cq_tail_)) return false;
  const io_uring_cqe& entry = cqes_[head & cq_mask_];
  *result = {entry.user_data, entry.res};
  store(cq_head_, head + 1);
  return true;
}

}  // namespace evoke
#endif
