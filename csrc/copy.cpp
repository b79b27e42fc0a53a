#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "blocks.hpp"
#include "copy_job.hpp"

namespace evoke {
namespace {

constexpr int kMaxWorkers = 256;
constexpr int64_t kSpinNs = 20000;
constexpr uint64_t kClaimBytes = uint64_t{1} << 20;  // a worker takes this or one block

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// ------------------------------------------------------------------ life

CopyEngine::CopyEngine(int workers) : worker_count_(static_cast<size_t>(workers)) {
  if (workers < 1 || workers > kMaxWorkers) {
    throw std::invalid_argument("workers is " + std::to_string(workers) + ", not 1 to " +
                                std::to_string(kMaxWorkers));
  }
  install_fault_guard();
  eventfd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (eventfd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  try {
    start_workers();
  } catch (...) {
    close();
    ::close(eventfd_);
    throw;
  }
}

void CopyEngine::start_workers() {
  // Workers inherit the mask: signals are for the process's other threads.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    sigdelset(&blocked, fault);
  }
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    for (size_t n = 0; n < worker_count_; n++) {
      auto worker = std::make_unique<Worker>();
      worker->thread = std::thread([this, w = worker.get()] { work(*w); });
      const pthread_t handle = worker->thread.native_handle();
      workers_.push_back(std::move(worker));
      pthread_setname_np(handle, ("evoke-copy-" + std::to_string(n)).c_str());
      pthread_getcpuclockid(handle, &workers_.back()->cpu_clock);
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CopyEngine::~CopyEngine() {
  close();
  ::close(eventfd_);
}

void CopyEngine::close() {
  const std::lock_guard closing(close_mutex_);
  std::vector<Claim> rest;
  {
    const std::lock_guard lock(queue_mutex_);
    closing_ = true;
    for (auto& job : queue_) {
      rest.push_back({job, job->claimed, job->blocks});
    }
    queue_.clear();
    queued_ = 0;
  }
  queue_filled_.notify_all();
  for (Claim& claim : rest) finish(std::move(claim.job), claim.end - claim.begin);
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

// ------------------------------------------------------------------ workers

void CopyEngine::spin() const {
  // Spinning on a core that another thread needs would delay the very work waited for.
  if (std::thread::hardware_concurrency() <= worker_count_) return;
  const int64_t until = now_ns() + kSpinNs;
  while (queued_ == 0 && !closing_ && now_ns() < until) relax();
}

// Takes some blocks of the job that waited longest since blocks of it were last taken, so that a
// large job does not hold up the small ones behind it. False when the engine closes.
bool CopyEngine::claim(Claim& claim) {
  if (queued_ == 0) spin();
  std::unique_lock lock(queue_mutex_);
  queue_filled_.wait(lock, [&] { return closing_ || !queue_.empty(); });
  if (closing_) return false;
  std::shared_ptr<Job> job = std::move(queue_.front());
  queue_.pop_front();
  const size_t left = job->blocks - job->claimed;
  const size_t share = (left + worker_count_ - 1) / worker_count_;
  const size_t batch = std::clamp<size_t>(kClaimBytes / job->block_bytes, 1, share);
  claim.begin = job->claimed;
  claim.end = job->claimed += batch;
  if (batch < left) queue_.push_back(job);
  queued_ = queue_.size();
  claim.job = std::move(job);
  return true;
}

void CopyEngine::work(Worker& worker) {
  Claim claim;
  while (this->claim(claim)) {
    for (size_t block = claim.begin; block < claim.end && !closing_; block++) {
      worker.beat_ns = now_ns();
      run_block(*claim.job, block);
    }
    worker.beat_ns = now_ns();
    finish(std::move(claim.job), claim.end - claim.begin);
    worker.beat_ns = 0;
  }
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  worker.ended_cpu_ns = used.tv_sec * int64_t{1000000000} + used.tv_nsec;
}

void CopyEngine::run_block(Job& job, size_t block) {
  Outcome outcome = Outcome::kLate;
  if (job.deadline_ns == 0 || now_ns() <= job.deadline_ns) {
    outcome = job.transfer.fence == nullptr ? copy_block(job, block) : copy_fenced(job, block);
  }
  job.outcomes[block] = outcome;
  count(job, outcome);
}

Outcome CopyEngine::copy_fenced(Job& job, size_t block) {
  FencePage& fence = *job.transfer.fence;
  const unsigned word = job.transfer.fence_word;
  bool entered = false;
  auto enter = [&] { entered = fence.enter(word); };
  if (!run_guarded(fence.memory(), {}, enter)) return Outcome::kFault;
  if (!entered) return Outcome::kCancelled;
  const Outcome outcome = copy_block(job, block);
  auto leave = [&] { fence.leave(word); };
  return run_guarded(fence.memory(), {}, leave) ? outcome : Outcome::kFault;
}

Outcome CopyEngine::copy_block(Job& job, size_t block) {
  const Kernel& use = kernel();
  uint8_t* stored = job.stored[block];
  uint64_t sum = 0;
  if (job.kind == Kind::kMove) {
    sum = move_block(use, job.targets[block], stored, job.block_bytes);
  } else {
    const Pool& pool = *job.transfer.pool;
    const uint32_t slot = job.transfer.slots[block];
    auto copy = [&] {
      sum = job.kind == Kind::kStore
                ? gather_block(use, pool.layout(), pool.address(), slot, stored)
                : scatter_block(use, pool.layout(), pool.address(), slot, stored);
    };
    if (!run_guarded(pool.memory(), {}, copy)) {
      use.fence();
      return Outcome::kFault;
    }
  }
  job.sums[block] = sum;
  const bool agrees = !job.transfer.verify || sum == job.transfer.sums[block];
  return agrees ? Outcome::kCopied : Outcome::kCorrupt;
}

void CopyEngine::count(const Job& job, Outcome outcome) {
  if (outcome == Outcome::kFault) faults_.fetch_add(1, std::memory_order_relaxed);
  if (outcome != Outcome::kCopied) return;
  bytes_[static_cast<size_t>(job.kind)].fetch_add(job.block_bytes, std::memory_order_relaxed);
  blocks_.fetch_add(1, std::memory_order_relaxed);
}

// The last to finish gives the results out. Its reference to the pool may be the last one:
// unmapping takes long, so it comes after the results and here rather than in the thread that takes
// them.
void CopyEngine::finish(std::shared_ptr<Job> job, size_t blocks) {
  if (job->finished.fetch_add(blocks) + blocks < job->blocks) return;
  {
    const std::lock_guard lock(completed_mutex_);
    completed_.push_back({job->ticket, std::move(job->outcomes), std::move(job->sums)});
    in_flight_--;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
    assert(written == sizeof one);
  }
}

// ------------------------------------------------------------------ answers

std::vector<Completed> CopyEngine::take_completed() {
  std::vector<Completed> taken;
  const std::lock_guard lock(completed_mutex_);
  taken.swap(completed_);
  uint64_t count;
  const ssize_t got = read(eventfd_, &count, sizeof count);
  assert(got == sizeof count || (got < 0 && errno == EAGAIN && taken.empty()));
  static_cast<void>(got);
  return taken;
}

size_t CopyEngine::in_flight() const { return in_flight_; }

std::vector<double> CopyEngine::heartbeats() const {
  std::vector<double> seconds;
  for (const auto& worker : workers_) {
    const int64_t beat_ns = worker->beat_ns;
    seconds.push_back(beat_ns == 0 ? 0.0 : static_cast<double>(now_ns() - beat_ns) * 1e-9);
  }
  return seconds;
}

CopyStats CopyEngine::stats() const {
  CopyStats stats{bytes_[0], bytes_[1], bytes_[2], blocks_, faults_, 0};
  for (const auto& worker : workers_) {
    int64_t cpu_ns = worker->ended_cpu_ns;
    timespec used;
    if (cpu_ns < 0 && clock_gettime(worker->cpu_clock, &used) == 0) {
      cpu_ns = used.tv_sec * int64_t{1000000000} + used.tv_nsec;
    }
    stats.cpu_ns += static_cast<uint64_t>(std::max<int64_t>(cpu_ns, 0));
  }
  return stats;
}

}  // namespace evoke
