// The copy engine: worker threads that copy and sum batches of blocks.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fence.hpp"
#include "pool.hpp"

namespace evoke {

enum class Outcome : uint8_t { kCopied, kCorrupt, kFault, kLate, kCancelled };

// Blocks between slots of a pool and tier memory. One entry of slots, refs and sums per block.
struct Transfer {
  std::shared_ptr<Pool> pool;
  std::vector<uint32_t> slots;
  std::vector<uint64_t> refs;
  std::vector<uint64_t> sums;  // what stored bytes must have (fetch with verify), else unused
  bool verify = false;
  int64_t deadline_ms = 0;           // from now; 0: none
  std::shared_ptr<FencePage> fence;  // or none
  unsigned fence_word = 0;
};

struct Completed {
  uint64_t ticket;
  std::vector<Outcome> outcomes;
  std::vector<uint64_t> sums;  // 0 where nothing was copied
};

struct CopyStats {
  uint64_t bytes_stored, bytes_fetched, bytes_moved, blocks, faults, cpu_ns;
};

// All methods but the destructor may be called from any thread. Requests throw
// std::invalid_argument before anything moves, naming the argument and the number.
class CopyEngine {
 public:
  // 1 to 256 workers.
  explicit CopyEngine(int workers);
  ~CopyEngine();  // closes
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // Registers tier memory and returns its number. It must stay mapped until close.
  unsigned add_memory(uint8_t* address, uint64_t bytes);

  // Each returns a ticket that a Completed will carry.
  uint64_t store(Transfer transfer);
  uint64_t fetch(Transfer transfer);
  uint64_t move(const std::vector<uint64_t>& source_refs, const std::vector<uint64_t>& target_refs,
                uint64_t block_bytes, std::vector<uint64_t> sums);

  // Takes what is done; the eventfd is readable exactly while there is something to take.
  std::vector<Completed> take_completed();
  int eventfd() const { return eventfd_; }

  size_t workers() const { return worker_count_; }
  size_t in_flight() const;  // jobs not completed
  std::vector<double> heartbeats() const;
  CopyStats stats() const;

  // Lets running blocks end, gives the others back as cancelled, joins the workers.
  void close();

 private:
  enum class Kind { kStore, kFetch, kMove };
  struct Job;
  struct Claim;
  struct Worker;
  struct Memory {
    uint8_t* address;
    uint64_t bytes;
  };

  void resolve(const char* name, const std::vector<uint64_t>& refs, uint64_t block_bytes,
               std::vector<uint8_t*>& addresses) const;
  std::shared_ptr<Job> make_job(Kind kind, Transfer transfer) const;
  uint64_t submit(std::shared_ptr<Job> job);
  void start_workers();
  void work(Worker& worker);
  bool claim(Claim& claim);
  void spin() const;
  void run_block(Job& job, size_t block);
  Outcome copy_fenced(Job& job, size_t block);
  Outcome copy_block(Job& job, size_t block);
  void count(const Job& job, Outcome outcome);
  void finish(std::shared_ptr<Job> job, size_t blocks);

  const size_t worker_count_;
  static constexpr size_t kMaxMemories = 255;  // number 255 would make NO_REF a valid ref
  mutable std::mutex memories_mutex_;
  std::vector<Memory> memories_;

  mutable std::mutex queue_mutex_;  // queue_, closing_, claims of jobs
  std::condition_variable queue_filled_;
  std::deque<std::shared_ptr<Job>> queue_;  // jobs with blocks that nobody has claimed
  std::atomic<size_t> queued_{0};           // its size, for spinning
  std::atomic<bool> closing_{false};

  mutable std::mutex completed_mutex_;
  std::vector<Completed> completed_;
  int eventfd_ = -1;

  std::atomic<uint64_t> next_ticket_{1};
  std::atomic<size_t> in_flight_{0};
  std::atomic<uint64_t> bytes_[3] = {};  // stored, fetched, moved
  std::atomic<uint64_t> blocks_{0};
  std::atomic<uint64_t> faults_{0};

  std::mutex close_mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace evoke
