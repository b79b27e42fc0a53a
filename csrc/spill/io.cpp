#include "io.hpp"

#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "format.hpp"

namespace evoke {

Pages make_pages(size_t bytes) {
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, pages_up(bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  return Pages(memory);
}

void IoFault::set(int error, int delay_ms, int64_t operations) {
  const std::lock_guard lock(mutex_);
  error_ = error;
  delay_ms_ = delay_ms;
  remaining_ = operations;
}

int IoFault::strike() {
  int error = 0;
  int delay_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    if (remaining_ == 0) return 0;
    remaining_--;
    error = error_;
    delay_ms = delay_ms_;
  }
  if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  return error;
}

void IoEngine::submit(IoJobPtr job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    in_flight_++;
  }
  queued_.notify_one();
  wake();
}

IoJobPtr IoEngine::cancel(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(queue_.begin(), queue_.end(),
                               [&](const IoJobPtr& job) { return job->ticket == ticket; });
  if (at == queue_.end()) return nullptr;
  IoJobPtr job = std::move(*at);
  queue_.erase(at);
  in_flight_--;
  return job;
}

std::vector<IoJobPtr> IoEngine::take() {
  const std::lock_guard lock(mutex_);
  in_flight_ -= done_.size();
  return std::exchange(done_, {});
}

size_t IoEngine::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_;
}

IoJobPtr IoEngine::next(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait) queued_.wait(lock, [&] { return closing_ || !queue_.empty(); });
  if (closing_ || queue_.empty()) return nullptr;
  IoJobPtr job = std::move(queue_.front());
  queue_.pop_front();
  return job;
}

void IoEngine::finish(IoJobPtr job) {
  if (job->error == 0 && job->after) job->after(*job);
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(job));
  }
  const uint64_t one = 1;
  // It fails only when the count is full, and then the reader is awake.
  [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
}

bool IoEngine::closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

void IoEngine::start(const std::shared_ptr<IoEngine>& self, size_t threads) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < threads; i++) {
    running_threads_++;
    threads_.emplace_back([self] {
      self->run();
      timespec spent{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
      self->cpu_ns_ += static_cast<uint64_t>(spent.tv_sec) * 1'000'000'000 +
                       static_cast<uint64_t>(spent.tv_nsec);
      const std::lock_guard ended(self->mutex_);
      self->running_threads_--;
      self->ended_.notify_all();
    });
  }
}

bool IoEngine::close(const std::shared_ptr<IoEngine>& engine, int wait_ms) {
  std::unique_lock lock(engine->mutex_);
  engine->closing_ = true;
  engine->queued_.notify_all();
  lock.unlock();
  engine->wake();
  lock.lock();
  const bool ended = engine->ended_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                                             [&] { return engine->running_threads_ == 0; });
  std::vector<std::thread> threads = std::exchange(engine->threads_, {});
  lock.unlock();
  for (std::thread& thread : threads) ended ? thread.join() : thread.detach();
  return ended;
}

namespace {

// All bytes of the job, in as many calls as the kernel likes. The errno.
int transfer(const IoJob& job) {
  std::vector<iovec> left;
  for (const Piece& piece : job.pieces) left.push_back({piece.memory, piece.bytes});
  auto offset = static_cast<off_t>(job.offset);
  for (size_t first = 0; first < left.size();) {
    const int count = static_cast<int>(std::min<size_t>(left.size() - first, 512));
    const ssize_t moved = job.is_write ? pwritev(job.fd, &left[first], count, offset)
                                       : preadv(job.fd, &left[first], count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return ENODATA;
    offset += moved;
    auto bytes = static_cast<size_t>(moved);
    while (first < left.size() && bytes >= left[first].iov_len) bytes -= left[first++].iov_len;
    if (bytes > 0) {
      left[first].iov_base = static_cast<uint8_t*>(left[first].iov_base) + bytes;
      left[first].iov_len -= bytes;
    }
  }
  return 0;
}

class ThreadEngine : public IoEngine {
 public:
  ThreadEngine(size_t depth, int eventfd) : IoEngine(depth, eventfd) {}
  const char* name() const override { return "threads"; }
  using IoEngine::start;

 private:
  void run() override {
    while (IoJobPtr job = next(true)) {
      job->error = strike(*job);
      if (job->error == 0) job->error = transfer(*job);
      finish(std::move(job));
    }
  }
};

}  // namespace

std::shared_ptr<IoEngine> make_thread_engine(size_t depth, int eventfd) {
  auto engine = std::make_shared<ThreadEngine>(depth, eventfd);
  engine->start(engine, depth);
  return engine;
}

}  // namespace evoke
