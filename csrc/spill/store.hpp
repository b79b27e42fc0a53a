// A flash directory as a store of blocks. It owns bytes and says whom it would give up first; what
// is written, read and freed, and when, is decided above.
//
// What holds, whatever happens to the process or the files:
// - A block is found from the end of its write. read() gives its bytes or a miss, never others:
//   what another process wrote is believed only after its header (key, namespace, generation) and
//   checksum agreed; what this one wrote or read before, after its checksum agreed.
// - A generation is used once: epoch << 40 plus a counter, and each opening has an epoch of its
// own.
// - Files never have more than capacity_bytes. The index, at most 1 % of what was written to it for
//   blocks of at least 64 KiB, comes on top.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "catalog.hpp"
#include "files.hpp"
#include "io.hpp"
#include "journal.hpp"

namespace evoke {

struct SpillOptions {
  std::string directory;
  uint64_t capacity_bytes = 0;
  uint64_t segment_bytes = 0;  // of a new store; 0: by capacity
  size_t depth = 4;            // transfers at a time
  bool uring = true;           // where the kernel has it
  bool direct = true;          // where the file system takes it
  // Tier memories by number, as in refs; bytes 0: no such number.
  std::vector<IoMemory> memories;
};

struct Recovered {
  uint64_t records, bad_records, blocks, dropped_blocks;  // dropped: beyond the cap, or no file
  bool damaged;  // there was an index file, but it could not be read as one
};

enum class SpillOutcome : uint8_t {
  kDone,
  kCorrupt,    // not the block's bytes: it is erased, and a miss from now on
  kFailed,     // an errno
  kLate,       // the deadline passed; what was named stays in use until the final completion
  kCancelled,  // the deadline passed before it started: nothing is in use
};
enum class SpillKind : uint8_t { kWrite, kRead, kSync, kProbe };

struct SpillDone {
  uint64_t ticket;
  SpillKind kind;
  SpillOutcome outcome;
  int error;                   // errno
  bool is_final;               // false: late
  uint32_t slot;               // write, read
  std::vector<uint64_t> sums;  // read: of each part
};

struct BlockToWrite {
  uint32_t namespace_number;
  Key key;
  Key parent;  // zeros: none
  uint32_t chain_index;
  State state;
  std::vector<uint64_t> refs;  // one for each part
  std::vector<PartInfo> parts;
};

// Where the parts of a block are in memory, for a job.
struct Buffers {
  struct Bounce {
    uint8_t* place;
    uint8_t* pages;
    uint32_t length_bytes;
  };
  std::vector<Piece> pieces;
  std::vector<Bounce> bounces;  // of places that direct I/O cannot take
  std::vector<Pages> pages;     // theirs
};

// Owned by one thread. Bad arguments: std::invalid_argument, and nothing has changed.
class SpillStore {
 public:
  // Opens or makes the store. Throws std::system_error (directory, lock, I/O), and
  // std::invalid_argument: of a bad option, or when a newer version wrote the directory (it is left
  // as it is). May take a second for 100,000 blocks or a slow device.
  explicit SpillStore(const SpillOptions& options);
  ~SpillStore();
  SpillStore(const SpillStore&) = delete;
  SpillStore& operator=(const SpillStore&) = delete;

  // The number of a namespace's blocks here; the same id has the same number while it has blocks.
  uint32_t add_namespace(const Key& id);
  std::vector<uint32_t> find(uint32_t namespace_number, std::span<const uint8_t> keys) const;
  void touch(std::span<const uint32_t> slots) { catalog_.touch(live(slots)); }
  // Consecutive keys of one chain: sets missing links between those that are here.
  void link(uint32_t namespace_number, std::span<const uint8_t> keys);
  std::vector<uint32_t> victims(size_t count, uint64_t bytes, uint64_t block_bytes) const;
  void erase(std::span<const uint32_t> slots);
  std::vector<uint32_t> slots_of(uint32_t namespace_number) const;

  // A ticket; 0 when there is no room, or the key is present or being written.
  uint64_t write(const BlockToWrite& block, int64_t deadline_ms);
  // One place for each part. One that begins on a page takes whole pages, another exactly its
  // bytes. verify: compute the checksum (else whoever uses the bytes does). A ticket; 0 when the
  // slot is being read too often.
  uint64_t read(uint32_t slot, std::span<const uint64_t> refs,
                std::span<const uint32_t> lengths_bytes, bool verify, int64_t deadline_ms);
  uint64_t sync();
  uint64_t probe(int64_t deadline_ms);
  void prepare() { journal_->prepare(); }
  // fd() is readable while there is something to take, or a deadline passed.
  std::vector<SpillDone> take();
  int fd() const { return poll_.get(); }

  // Where whoever promised a place to a transfer must look before it is used again.
  size_t in_flight() const { return transfers_.size(); }
  const Catalog& catalog() const { return catalog_; }
  const Key& namespace_id(uint32_t number) const { return namespaces_.at(number); }
  const Recovered& recovered() const { return recovered_; }
  // What the policy had learned about recovered blocks, once: (slot, state).
  std::vector<std::pair<uint32_t, State>> take_states() { return std::exchange(states_, {}); }
  const IoEngine& engine() const { return *engine_; }
  const std::string& uring_refused() const { return uring_refused_; }
  const SpillFiles& files() const { return *files_; }
  JournalStats journal_stats() const { return journal_->stats(); }
  uint64_t segment_bytes() const { return header_.segment_bytes; }
  uint64_t bytes_written() const { return bytes_written_; }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t integrity_failures() const { return integrity_failures_; }
  // For tests: the next operations fail with `error` after delay_ms; what: read, write or journal.
  void inject(const std::string& what, int error, int delay_ms, int64_t operations);

  // Ends what was started and makes the index durable. False when that took more than wait_ms (a
  // stalled device): threads are left behind, and the tier memories must stay mapped.
  bool close(int wait_ms);

 private:
  struct Transfer {
    SpillKind kind;
    uint32_t slot = kNoSlot;
    int64_t deadline_ms = 0;  // of the monotonic clock; 0: none, or passed
    Key parent{};             // write
    State state{};            // write
    std::vector<uint64_t> sums{};
    bool is_late = false;
  };

  struct Found {  // a place that the index names
    uint32_t slot;
    uint64_t generation;
    std::array<uint8_t, 16> parent;
    State state;
  };

  void recover(const SpillOptions& options);
  void read_records(int fd, std::vector<Found>* found);
  void apply(const Record& record, std::vector<Found>* found);
  void place(const Record& record, std::vector<Found>* found);
  void commit_found(std::vector<Found>& found);
  void drop_unused_namespaces();
  Keep keep() const;
  void start(const SpillOptions& options);

  std::span<const uint32_t> live(std::span<const uint32_t> slots) const;
  const Key& need_namespace(uint32_t number) const;
  Buffers buffers_of(std::span<const uint64_t> refs, std::span<const PartInfo> parts) const;
  uint32_t take_slot(uint64_t slot_bytes);
  uint64_t submit(IoJobPtr job, Transfer transfer, int64_t deadline_ms);
  void ended(IoJob& job, std::vector<SpillDone>* done);
  void write_ended(IoJob& job, Transfer& transfer, std::vector<SpillDone>* done);
  void read_ended(IoJob& job, Transfer& transfer, std::vector<SpillDone>* done);
  void finish(uint64_t ticket, SpillOutcome outcome, int error, std::vector<SpillDone>* done);
  void give_up(uint64_t ticket);  // of a transfer that came to nothing
  void find_late(std::vector<SpillDone>* done);
  void set_timer();
  void erase_one(uint32_t slot, std::vector<Record>* records);
  void compact_if_large();
  Record place_record(const Transfer& transfer) const;

  IndexHeader header_{};
  std::shared_ptr<SpillFiles> files_;
  Catalog catalog_;
  std::unordered_map<uint32_t, Key> namespaces_;
  std::unordered_map<std::string, uint32_t> namespace_numbers_;
  uint32_t next_namespace_ = 1;
  Recovered recovered_{};
  std::vector<std::pair<uint32_t, State>> states_;

  std::vector<IoMemory> memories_;
  Fd eventfd_, timer_, poll_;
  std::shared_ptr<IoEngine> engine_;
  std::shared_ptr<Journal> journal_;
  std::string uring_refused_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::unordered_map<std::string, uint64_t> writing_;  // namespace and key -> ticket
  uint64_t next_ticket_ = 1;
  uint64_t next_generation_ = 0;
  uint64_t bytes_written_ = 0;
  uint64_t bytes_read_ = 0;
  uint64_t integrity_failures_ = 0;
  uint64_t compact_above_records_ = 0;
  uint64_t compactions_seen_ = 0;
  bool closed_ = false;
};

}  // namespace evoke
