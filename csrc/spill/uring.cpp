#include "io.hpp"

#if __has_include(<linux/io_uring.h>)
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "ring.hpp"

namespace evoke {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr unsigned kPieceBits = 16;

// A stretch of a job that is one request to the kernel.
struct Stretch {
  std::vector<iovec> memory;
  uint64_t offset;
  int buffer;  // registered, or -1
  uint64_t bytes;
};

struct Running {
  IoJobPtr job;
  std::vector<Stretch> stretches;
  size_t left = 0;  // stretches that have not ended
};

void advance(Stretch& stretch, uint64_t bytes) {
  stretch.offset += bytes;
  stretch.bytes -= bytes;
  size_t gone = 0;
  while (gone < stretch.memory.size() && bytes >= stretch.memory[gone].iov_len) {
    bytes -= stretch.memory[gone++].iov_len;
  }
  stretch.memory.erase(stretch.memory.begin(),
                       stretch.memory.begin() + static_cast<std::ptrdiff_t>(gone));
  if (bytes == 0) return;
  iovec& first = stretch.memory.front();
  first.iov_base = static_cast<uint8_t*>(first.iov_base) + bytes;
  first.iov_len -= bytes;
}

class UringEngine : public IoEngine {
 public:
  UringEngine(size_t depth, int eventfd, std::span<const IoMemory> memories)
      : IoEngine(depth, eventfd), ring_(128), running_(depth) {
    wake_fd_ = Fd(::eventfd(0, EFD_CLOEXEC));
    if (wake_fd_.get() < 0) throw_system_error(errno, "eventfd");
    registered_ = ring_.register_buffers(memories);
  }
  const char* name() const override { return "io_uring"; }
  bool registered() const override { return registered_; }
  using IoEngine::start;

 private:
  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof one);
  }

  void run() override {
    wait_for_wake();
    for (;;) {
      while (active_ < depth_) {
        IoJobPtr job = next(false);
        if (job == nullptr) break;
        begin(std::move(job));
      }
      if (active_ == 0 && closing()) return;
      ring_.submit(1);
      for (RingResult result{}; ring_.take(&result);) {
        result.tag == kWakeTag ? wait_for_wake() : ended(result);
      }
    }
  }

  void wait_for_wake() {
    io_uring_sqe& entry = ring_.add(kWakeTag);
    entry.opcode = IORING_OP_READ;
    entry.fd = wake_fd_.get();
    entry.addr = reinterpret_cast<uintptr_t>(&woken_);
    entry.len = sizeof woken_;
  }

  void begin(IoJobPtr job) {
    job->error = strike(*job);
    if (job->error != 0) return finish(std::move(job));
    const auto place = static_cast<size_t>(
        std::find_if(running_.begin(), running_.end(),
                     [](const Running& running) { return running.job == nullptr; }) -
        running_.begin());
    Running& running = running_[place];
    running.stretches.clear();
    uint64_t offset = job->offset;
    for (const Piece& piece : job->pieces) {
      const int buffer = ring_.buffer_of(piece.memory, piece.bytes);
      std::vector<Stretch>& all = running.stretches;
      if (buffer >= 0 || all.empty() || all.back().buffer >= 0) {
        all.push_back({{}, offset, buffer, 0});
      }
      all.back().memory.push_back({piece.memory, piece.bytes});
      all.back().bytes += piece.bytes;
      offset += piece.bytes;
    }
    running.left = running.stretches.size();
    running.job = std::move(job);
    active_++;
    for (size_t i = 0; i < running.stretches.size(); i++) request(place, i);
  }

  void request(size_t place, size_t number) {
    const Running& running = running_[place];
    const Stretch& stretch = running.stretches[number];
    const bool is_write = running.job->is_write;
    io_uring_sqe& entry = ring_.add(place << kPieceBits | number);
    entry.fd = running.job->fd;
    entry.off = stretch.offset;
    if (stretch.buffer >= 0) {
      entry.opcode = is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
      entry.addr = reinterpret_cast<uintptr_t>(stretch.memory[0].iov_base);
      entry.len = static_cast<uint32_t>(stretch.memory[0].iov_len);
      entry.buf_index = static_cast<uint16_t>(stretch.buffer);
    } else {
      entry.opcode = is_write ? IORING_OP_WRITEV : IORING_OP_READV;
      entry.addr = reinterpret_cast<uintptr_t>(stretch.memory.data());
      entry.len = static_cast<uint32_t>(stretch.memory.size());
    }
  }

  void ended(const RingResult& result) {
    const size_t place = result.tag >> kPieceBits;
    const size_t number = result.tag & ((1U << kPieceBits) - 1);
    Running& running = running_[place];
    Stretch& stretch = running.stretches[number];
    if (result.result == -EINTR || result.result == -EAGAIN) return request(place, number);
    if (result.result > 0) advance(stretch, static_cast<uint64_t>(result.result));
    if (result.result > 0 && stretch.bytes > 0) return request(place, number);
    if (result.result <= 0) running.job->error = result.result == 0 ? ENODATA : -result.result;
    if (--running.left > 0) return;
    active_--;
    finish(std::move(running.job));
  }

  Ring ring_;
  Fd wake_fd_;
  uint64_t woken_ = 0;
  bool registered_ = false;
  std::vector<Running> running_;
  size_t active_ = 0;
};

}  // namespace

std::shared_ptr<IoEngine> make_uring_engine(size_t depth, int eventfd,
                                            std::span<const IoMemory> memories, std::string* why) {
  try {
    auto engine = std::make_shared<UringEngine>(depth, eventfd, memories);
    engine->start(engine, 1);
    return engine;
  } catch (const std::system_error& refused) {
    *why = refused.what();
    return nullptr;
  }
}

}  // namespace evoke

#else

namespace evoke {

std::shared_ptr<IoEngine> make_uring_engine(size_t, int, std::span<const IoMemory>,
                                            std::string* why) {
  *why = "built without the kernel's io_uring header";
  return nullptr;
}

}  // namespace evoke
#endif
