// The published look-up table: which blocks are stored, readable by clients without a round trip.
//
// A memfd sealed SHRINK|GROW|FUTURE_WRITE|SEAL; all integers little-endian.
//
// Header, 4096 bytes:
//     0  8 bytes  magic "EVKTABLE"
//     8  u32      version: 1
//    12  u32      bytes of the header: 4096
//    16  u64      buckets: a power of two
//    24  u64      epoch: rises with each table that a daemon publishes
//    32  u32      superseded: 0; 1 when another table has been published. The contents stop
//    changing
//                 then, so that a hit may be stale (a fetch finds out)
//    36           zero
//
// Bucket b, 64 bytes, at 4096 + 64 b:
//     0  u32      version: odd while the daemon writes the bucket, else even; changes with each
//     write 4  3 x u32  refs: the top 2 bits are the tier (1 host, 2 cxl, 3 flash), the low 30 bits
//     are 0
//                 and to be ignored; a ref of 0 means that the entry is empty whatever its tag is
//    16  3 x 16   tags
//
// The tag of a key is SipHash-2-4 with 128-bit output of its 32 bytes; the SipHash key is the
// namespace's 16-byte secret. The tag's bytes 0..7 and 8..15 are read as two u64; modulo the number
// of buckets they name the two candidate buckets (they may be the same). An entry is in either.
//
// Reading a bucket: load the version; if it is odd, start over; load refs and tags; load the
// version again; if it has changed, start over. All with acquire ordering. Entries move between
// their two buckets (written at the new place first), so after a miss in both the first bucket's
// version must still be what it was, else start over. After 8 attempts the answer is a miss.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory.hpp"
#include "siphash.hpp"

namespace evoke {

struct TableBucket {
  std::atomic<uint32_t> version;
  std::array<std::atomic<uint32_t>, 3> refs;
  std::array<std::array<std::atomic<uint64_t>, 2>, 3> tags;
};
static_assert(sizeof(TableBucket) == 64 && std::atomic<uint64_t>::is_always_lock_free);

struct TableHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t buckets;
  uint64_t epoch;
  std::atomic<uint32_t> superseded;
};
constexpr size_t kTableHeaderBytes = 4096;

constexpr uint32_t kTierShift = 30;

// The daemon's side. Owned by one thread.
class TableWriter {
 public:
  // buckets is rounded up to a power of two. Throws std::system_error when memory is refused; not
  // to be written to before all of it is reserved.
  TableWriter(size_t buckets, uint64_t epoch);
  // Takes up to so many bytes more of the table's memory. Throws as the constructor does.
  void reserve(size_t length_bytes);
  bool is_reserved() const { return reserved_bytes_ == memory_.size(); }
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;

  // False when no place is found within a bounded search. The tag must not be present.
  bool insert(const Tag& tag, uint32_t tier);
  // False when the tag is not there with this tier.
  bool erase(const Tag& tag, uint32_t tier);
  bool contains(const Tag& tag, uint32_t tier) const;
  void supersede();

  int fd() const { return fd_.get(); }
  uint64_t epoch() const { return header().epoch; }
  size_t buckets() const { return mask_ + 1; }
  size_t entries() const { return entries_; }
  size_t size_bytes() const { return memory_.size(); }

 private:
  struct Place {
    size_t bucket;
    int slot;
  };
  struct Step {  // one bucket of the search for room
    size_t bucket;
    int parent;       // number of the step it was reached from, -1 for a candidate
    int parent_slot;  // the entry there that would move here
  };

  TableHeader& header() const { return *reinterpret_cast<TableHeader*>(memory_.data()); }
  TableBucket& bucket(size_t number) const;
  size_t other_bucket(size_t number, const Tag& tag) const;
  int empty_slot(size_t number) const;
  bool find(const Tag& tag, uint32_t tier, Place* place) const;
  bool make_room(const Tag& tag, Place* place);
  void write(Place place, const Tag& tag, uint32_t ref);
  void clear(Place place);

  Fd fd_;
  Mapping memory_;
  size_t mask_ = 0;
  size_t entries_ = 0;
  size_t reserved_bytes_ = 0;
};

// A client's side. Thread-safe.
class TableReader {
 public:
  // Maps fd, which may be closed afterwards. Throws std::invalid_argument when it is not a table.
  explicit TableReader(int fd);

  uint64_t epoch() const { return epoch_; }
  bool superseded() const;
  // tiers[i]: of key i, 0 for a miss. keys: packed, 32 bytes each.
  void lookup(const TagSecret& secret, std::span<const uint8_t> keys, uint8_t* tiers) const;
  // How many keys are present before the first that is not.
  size_t leading(const TagSecret& secret, std::span<const uint8_t> keys) const;

 private:
  const TableBucket& bucket(uint64_t half) const;
  uint8_t tier_of(const Tag& tag) const;

  Mapping memory_;
  size_t mask_ = 0;
  uint64_t epoch_ = 0;
};

}  // namespace evoke
