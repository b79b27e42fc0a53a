// Reads and writes of whole slots in threads of their own: io_uring, or a pool of threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../memory.hpp"

namespace evoke {

struct FreeMemory {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Pages = std::unique_ptr<uint8_t, FreeMemory>;
Pages make_pages(size_t bytes);  // page-aligned; throws std::bad_alloc

// Memory that jobs' pieces lie in, of the tiers above.
struct IoMemory {
  uint8_t* address;
  uint64_t bytes;
};

struct Piece {
  uint8_t* memory;
  size_t bytes;
};

// One transfer between pieces of memory and a stretch of a file. Whoever submitted it keeps the
// memory until the job is taken back.
struct IoJob {
  uint64_t ticket = 0;
  bool is_write = false;
  int fd = -1;
  uint64_t offset = 0;  // of the first piece; the others follow
  std::vector<Piece> pieces;
  std::function<void(IoJob&)> after;  // in the I/O thread, when all bytes have moved
  int error = 0;                      // errno; ENODATA: the file ends before the stretch does
  std::vector<Pages> pages;           // headers and bounce buffers that live as long as the job
  // Set by `after`.
  bool corrupt = false;
  std::vector<uint64_t> sums;
};
using IoJobPtr = std::unique_ptr<IoJob>;

// What tests have go wrong. `remaining` operations fail with `error` (or only take longer).
class IoFault {
 public:
  void set(int error, int delay_ms, int64_t operations);
  int strike();  // the error of this operation, after its delay

 private:
  std::mutex mutex_;
  int error_ = 0;
  int delay_ms_ = 0;
  int64_t remaining_ = 0;
};

// Thread-safe. Jobs start in order, at most `depth` at a time, and end in any order.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  void submit(IoJobPtr job);
  IoJobPtr cancel(uint64_t ticket);  // the job, if it has not started
  std::vector<IoJobPtr> take();      // what has ended
  size_t in_flight() const;          // not taken yet
  uint64_t cpu_ns() const { return cpu_ns_; }
  virtual const char* name() const = 0;
  virtual bool registered() const { return false; }  // tier memory is registered with the kernel

  // Lets started jobs end. False when they did not within wait_ms: their threads are left alone,
  // and the memory of their pieces must stay.
  static bool close(const std::shared_ptr<IoEngine>& engine, int wait_ms);

  IoFault read_fault, write_fault;

 protected:
  IoEngine(size_t depth, int eventfd) : depth_(depth), eventfd_(eventfd) {}
  IoJobPtr next(bool wait);  // null: none, or closing
  void finish(IoJobPtr job);
  int strike(const IoJob& job) { return (job.is_write ? write_fault : read_fault).strike(); }
  bool closing() const;
  virtual void wake() {}
  void start(const std::shared_ptr<IoEngine>& self, size_t threads);
  virtual void run() = 0;

  const size_t depth_;

 private:
  const int eventfd_;
  mutable std::mutex mutex_;
  std::condition_variable queued_, ended_;
  std::deque<IoJobPtr> queue_;
  std::vector<IoJobPtr> done_;
  size_t in_flight_ = 0;
  size_t running_threads_ = 0;
  bool closing_ = false;
  std::atomic<uint64_t> cpu_ns_{0};
  std::vector<std::thread> threads_;
};

// eventfd is written when a job has ended. Throws std::system_error when no thread can be made.
std::shared_ptr<IoEngine> make_thread_engine(size_t depth, int eventfd);
// Null, with the reason, where the kernel has no io_uring for us.
std::shared_ptr<IoEngine> make_uring_engine(size_t depth, int eventfd,
                                            std::span<const IoMemory> memories, std::string* why);

}  // namespace evoke
