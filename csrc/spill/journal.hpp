// The thread that keeps a flash directory's index: appends, syncs, compaction, probes, files.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "files.hpp"
#include "format.hpp"
#include "io.hpp"

namespace evoke {

// What is to stay of a journal.
struct Keep {
  IndexHeader header;
  std::vector<Record> preface;                     // namespaces and segments
  std::vector<std::vector<uint64_t>> generations;  // of live slots, by segment and index; 0: none
};

struct JournalStats {
  uint64_t records_written, bytes_written, records_in_file, records_waiting, records_lost;
  uint64_t compactions, syncs, errors;
  uint64_t segments_ready;
  int last_error, prepare_error;
};

struct JournalDone {
  uint64_t ticket;
  int error;
};

// Thread-safe. What was asked for is done in order; a ticket of 0 is not reported.
class Journal : public std::enable_shared_from_this<Journal> {
 public:
  // The index file exists already (rewrite_index). eventfd is written when something was done.
  Journal(std::shared_ptr<SpillFiles> files, uint64_t records_in_file, int eventfd);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  void start();

  void append(const std::vector<Record>& records, uint64_t ticket);
  void sync(uint64_t ticket);  // slots first, then the index
  void compact(Keep keep);
  void probe(uint64_t ticket);  // whether the directory takes and keeps a page
  void prepare();               // space for all segments
  std::vector<JournalDone> take();
  JournalStats stats() const;
  uint64_t segments_ready() const { return segments_ready_; }
  // As IoEngine::close. Everything that was asked for is done first.
  bool close(int wait_ms);

  IoFault fault;

 private:
  using Work = std::function<int()>;
  void ask(uint64_t ticket, Work work);
  void run();
  int write_waiting();
  int do_append(const std::vector<uint8_t>& bytes);
  int do_sync();
  int do_compact(const Keep& keep);
  int do_prepare();

  const std::shared_ptr<SpillFiles> files_;
  const int eventfd_;
  // Of the thread alone.
  uint64_t end_;                  // of the index file
  std::vector<uint8_t> waiting_;  // records that could not be written yet
  std::atomic<uint64_t> segments_ready_{0};

  mutable std::mutex mutex_;
  std::condition_variable asked_, ended_;
  std::deque<std::pair<uint64_t, Work>> queue_;
  std::vector<JournalDone> done_;
  JournalStats stats_{};
  bool closing_ = false;
  bool running_ = false;
  std::thread thread_;
};

// Writes a new index file that holds `keep` and the records of the old one that live, makes it
// durable and puts it in the old one's place. The errno. *records: in the new file.
int rewrite_index(SpillFiles& files, const Keep& keep, uint64_t* records);

}  // namespace evoke
