#include "copy.hpp"

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

namespace evoke {
namespace {

constexpr int kMaxWorkers = 256;
constexpr int64_t kSpinNs = 20000;
constexpr uint64_t kClaimBytes = uint64_t{1}
                                 << 20;  // what a worker takes at a time, at least 1 block
constexpr unsigned kMemoryShift = 56;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_length(const char* name, size_t length, size_t slots) {
  if (length == slots) return;
  refuse(std::string(name) + ": " + std::to_string(length) + " entries for " +
         std::to_string(slots) + " blocks");
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

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

// ------------------------------------------------------------------ life

CopyEngine::CopyEngine(int workers) : worker_count_(static_cast<size_t>(workers)) {
  if (workers < 1 || workers > kMaxWorkers) {
    refuse("workers is " + std::to_string(workers) + ", not 1 to " + std::to_string(kMaxWorkers));
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

unsigned CopyEngine::add_memory(uint8_t* address, uint64_t bytes) {
  if (address == nullptr) refuse("address is 0");
  if (bytes == 0 || bytes >> kMemoryShift != 0) {
    refuse("length_bytes is " + std::to_string(bytes) + ", not 1 to 2^56 - 1");
  }
  const std::lock_guard lock(memories_mutex_);
  if (memories_.size() == kMaxMemories) refuse("address: 255 memories are registered already");
  memories_.push_back({address, bytes});
  return static_cast<unsigned>(memories_.size() - 1);
}

// ------------------------------------------------------------------ requests

uint8_t* CopyEngine::resolve(const char* name, uint64_t ref, uint64_t block_bytes) const {
  const uint64_t number = ref >> kMemoryShift;
  const uint64_t offset = ref & ((uint64_t{1} << kMemoryShift) - 1);
  if (number >= memories_.size()) {
    refuse(std::string(name) + ": memory " + std::to_string(number) + " of " +
           std::to_string(memories_.size()));
  }
  const Memory& memory = memories_[number];
  if (offset > memory.bytes || memory.bytes - offset < block_bytes) {
    refuse(std::string(name) + ": offset " + std::to_string(offset) + " and " +
           std::to_string(block_bytes) + " bytes are beyond the " + std::to_string(memory.bytes) +
           " of memory " + std::to_string(number));
  }
  return memory.address + offset;
}

std::shared_ptr<CopyEngine::Job> CopyEngine::make_job(Kind kind, Transfer transfer) const {
  const size_t blocks = transfer.slots.size();
  check_length("refs", transfer.refs.size(), blocks);
  check_slots(transfer.slots, transfer.pool->layout().slots());
  if (transfer.deadline_ms < 0) {
    refuse("deadline_ms is " + std::to_string(transfer.deadline_ms) + ", below 0");
  }
  if (transfer.fence != nullptr && transfer.fence_word >= kFenceWords) {
    refuse("fence_word is " + std::to_string(transfer.fence_word) + " of " +
           std::to_string(kFenceWords));
  }
  auto job = std::make_shared<Job>(kind, transfer.pool->layout().block_bytes(), blocks);
  constexpr int64_t kLongestMs = INT64_MAX / 4000000;  // beyond it there is no deadline
  if (transfer.deadline_ms > 0 && transfer.deadline_ms < kLongestMs) {
    job->deadline_ns = now_ns() + transfer.deadline_ms * 1000000;
  }
  job->stored.reserve(blocks);
  const std::lock_guard lock(memories_mutex_);
  for (const uint64_t ref : transfer.refs) {
    job->stored.push_back(resolve("refs", ref, job->block_bytes));
  }
  job->transfer = std::move(transfer);
  return job;
}

uint64_t CopyEngine::store(Transfer transfer) {
  return submit(make_job(Kind::kStore, std::move(transfer)));
}

uint64_t CopyEngine::fetch(Transfer transfer) {
  check_length("sums", transfer.sums.size(), transfer.slots.size());
  check_distinct(transfer.slots);
  return submit(make_job(Kind::kFetch, std::move(transfer)));
}

uint64_t CopyEngine::move(const std::vector<uint64_t>& source_refs,
                          const std::vector<uint64_t>& target_refs, uint64_t block_bytes,
                          std::vector<uint64_t> sums) {
  const size_t blocks = source_refs.size();
  check_length("target_refs", target_refs.size(), blocks);
  check_length("sums", sums.size(), blocks);
  if (block_bytes == 0 || block_bytes > kMaxBlockBytes) {
    refuse("length_bytes is " + std::to_string(block_bytes) + ", not 1 to " +
           std::to_string(kMaxBlockBytes));
  }
  auto job = std::make_shared<Job>(Kind::kMove, block_bytes, blocks);
  job->transfer.sums = std::move(sums);
  job->transfer.verify = true;
  {
    const std::lock_guard lock(memories_mutex_);
    for (size_t i = 0; i < blocks; i++) {
      job->stored.push_back(resolve("source_refs", source_refs[i], block_bytes));
      job->targets.push_back(resolve("target_refs", target_refs[i], block_bytes));
    }
  }
  return submit(std::move(job));
}

uint64_t CopyEngine::submit(std::shared_ptr<Job> job) {
  const uint64_t ticket = next_ticket_++;
  job->ticket = ticket;
  const size_t blocks = job->blocks;
  bool all = false;
  {
    const std::lock_guard lock(queue_mutex_);
    if (closing_) throw std::runtime_error("the copy engine is closed");
    in_flight_++;
    if (blocks > 0) {
      all = blocks > 1;
      queue_.push_back(std::move(job));
      queued_ = queue_.size();
    }
  }
  if (blocks == 0) {
    finish(std::move(job), 0);
  } else if (all) {
    queue_filled_.notify_all();
  } else {
    queue_filled_.notify_one();
  }
  return ticket;
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
