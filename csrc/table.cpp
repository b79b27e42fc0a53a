#include "table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

constexpr std::array<char, 8> kMagic = {'E', 'V', 'K', 'T', 'A', 'B', 'L', 'E'};
constexpr uint32_t kVersion = 1;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr int kSlots = 3;
constexpr int kSearchSteps = 128;  // buckets looked at for room: paths of at most 4 moves
constexpr int kAttempts = 8;

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

Tag tag_at(const TableBucket& bucket, int slot) {
  return {{bucket.tags[slot][0].load(kRelaxed), bucket.tags[slot][1].load(kRelaxed)}};
}

// Gives a writer time: 1, 2, 4, ... pauses, some 10 us over all attempts.
void back_off(int attempt) {
  for (int i = 0; i < 1 << attempt; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }
}

struct Reading {
  bool stable;
  uint32_t version;
  uint8_t tier;  // 0: not in this bucket
};

// Every load acquires, so that none is seen later than the second load of the version; a fence
// would do as well, but ThreadSanitizer does not know fences.
inline Reading read_bucket(const TableBucket& bucket, const Tag& tag) {
  const uint32_t version = bucket.version.load(kAcquire);
  uint32_t ref = 0;
  for (int slot = 0; slot < kSlots; ++slot) {  // without branches: which entry it is is random
    const uint64_t differs = (bucket.tags[slot][0].load(kAcquire) ^ tag.half[0]) |
                             (bucket.tags[slot][1].load(kAcquire) ^ tag.half[1]);
    ref |= bucket.refs[slot].load(kAcquire) & (differs == 0 ? ~0u : 0u);
  }
  const bool stable = version % 2 == 0 && bucket.version.load(kRelaxed) == version;
  return {stable, version, static_cast<uint8_t>(ref >> kTierShift)};
}

}  // namespace

TableWriter::TableWriter(size_t buckets, uint64_t epoch) {
  if (buckets == 0 || buckets > size_t{1} << 32) {
    throw std::invalid_argument("buckets: " + std::to_string(buckets) + " is not in 1..2^32");
  }
  const size_t count = std::bit_ceil(buckets);
  mask_ = count - 1;
  const size_t length = kTableHeaderBytes + count * sizeof(TableBucket);
  fd_ = make_memfd("evoke-table", length, false);
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) throw_system_error(errno, "mapping the table");
  memory_ = Mapping(address, length);
  // FUTURE_WRITE spares the mapping made above and refuses every later one, and every write.
  if (fcntl(fd_.get(), F_ADD_SEALS, kSeals) != 0) throw_system_error(errno, "sealing the table");
  reserve(kTableHeaderBytes);
  TableHeader& head = header();
  head.magic = kMagic;
  head.version = kVersion;
  head.header_bytes = kTableHeaderBytes;
  head.buckets = count;
  head.epoch = epoch;
}

// Before the first write: a page that can't be had then would kill the daemon.
void TableWriter::reserve(size_t length_bytes) {
  const size_t now = std::min(length_bytes, memory_.size() - reserved_bytes_);
  if (now == 0) return;
  if (posix_fallocate(fd_.get(), static_cast<off_t>(reserved_bytes_), static_cast<off_t>(now))) {
    throw_system_error(ENOMEM, "table of " + std::to_string(memory_.size()) + " bytes");
  }
  reserved_bytes_ += now;
}

TableBucket& TableWriter::bucket(size_t number) const {
  return reinterpret_cast<TableBucket*>(memory_.data() + kTableHeaderBytes)[number];
}

size_t TableWriter::other_bucket(size_t number, const Tag& tag) const {
  const size_t first = tag.half[0] & mask_;
  return number == first ? tag.half[1] & mask_ : first;
}

int TableWriter::empty_slot(size_t number) const {
  for (int slot = 0; slot < kSlots; ++slot) {
    if (bucket(number).refs[slot].load(kRelaxed) == 0) return slot;
  }
  return -1;
}

void TableWriter::write(Place place, const Tag& tag, uint32_t ref) {
  TableBucket& target = bucket(place.bucket);
  const uint32_t version = target.version.load(kRelaxed);
  // Each store releases, so that none is seen before the version is odd.
  target.version.store(version + 1, kRelaxed);
  target.tags[place.slot][0].store(tag.half[0], kRelease);
  target.tags[place.slot][1].store(tag.half[1], kRelease);
  target.refs[place.slot].store(ref, kRelease);
  target.version.store(version + 2, kRelease);
}

void TableWriter::clear(Place place) { write(place, Tag{}, 0); }

bool TableWriter::find(const Tag& tag, uint32_t tier, Place* place) const {
  for (const uint64_t half : tag.half) {
    const size_t number = half & mask_;
    for (int slot = 0; slot < kSlots; ++slot) {
      const uint32_t ref = bucket(number).refs[slot].load(kRelaxed);
      if (ref >> kTierShift == tier && ref != 0 && tag_at(bucket(number), slot) == tag) {
        *place = {number, slot};
        return true;
      }
    }
  }
  return false;
}

// Breadth-first search for a bucket with room, then each entry on the path moves one on, the last
// first: an entry is at its new place before its old one is overwritten (*place at last, by
// insert).
bool TableWriter::make_room(const Tag& tag, Place* place) {
  std::array<Step, kSearchSteps> steps;
  int count = 0;
  steps[count++] = {tag.half[0] & mask_, -1, 0};
  if ((tag.half[1] & mask_) != steps[0].bucket) steps[count++] = {tag.half[1] & mask_, -1, 0};
  for (int at = 0; at < count; ++at) {
    int slot = empty_slot(steps[at].bucket);
    if (slot >= 0) {
      for (int step = at; steps[step].parent >= 0; step = steps[step].parent) {
        const Place from{steps[steps[step].parent].bucket, steps[step].parent_slot};
        const TableBucket& source = bucket(from.bucket);
        write({steps[step].bucket, slot}, tag_at(source, from.slot),
              source.refs[from.slot].load(kRelaxed));
        slot = from.slot;
        *place = from;
      }
      if (steps[at].parent < 0) *place = {steps[at].bucket, slot};
      return true;
    }
    for (slot = 0; slot < kSlots && count < kSearchSteps; ++slot) {
      const size_t next = other_bucket(steps[at].bucket, tag_at(bucket(steps[at].bucket), slot));
      // A bucket that is on the list already has no room either; moving along a loop would undo
      // an earlier move of the same path.
      const bool seen = std::any_of(steps.begin(), steps.begin() + count,
                                    [next](const Step& step) { return step.bucket == next; });
      if (!seen) steps[count++] = {next, at, slot};
    }
  }
  return false;
}

bool TableWriter::insert(const Tag& tag, uint32_t tier) {
  assert(tier >= 1 && tier <= 3);
  Place place{};
  if (!make_room(tag, &place)) return false;
  write(place, tag, tier << kTierShift);
  ++entries_;
  return true;
}

bool TableWriter::erase(const Tag& tag, uint32_t tier) {
  Place place{};
  if (!find(tag, tier, &place)) return false;
  clear(place);
  --entries_;
  return true;
}

bool TableWriter::contains(const Tag& tag, uint32_t tier) const {
  Place place{};
  return find(tag, tier, &place);
}

void TableWriter::supersede() { header().superseded.store(1, kRelease); }

TableReader::TableReader(int fd) {
  const std::string name = "fd: " + std::to_string(fd);
  const int seals = seals_of(fd);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw std::invalid_argument(name + " is not a memfd sealed as a table is");
  }
  struct stat status = {};
  if (fstat(fd, &status) != 0) throw std::invalid_argument(name + " can't be examined");
  const auto length = static_cast<size_t>(status.st_size);
  if (length < kTableHeaderBytes) {
    throw std::invalid_argument(name + " has " + std::to_string(length) + " bytes: not a table");
  }
  void* address = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) throw std::invalid_argument(name + " can't be mapped");
  memory_ = Mapping(address, length);
  const auto& head = *reinterpret_cast<const TableHeader*>(memory_.data());
  const size_t room = (length - kTableHeaderBytes) / sizeof(TableBucket);
  if (head.magic != kMagic || head.version != kVersion || head.header_bytes != kTableHeaderBytes ||
      !std::has_single_bit(head.buckets) || head.buckets > room) {
    throw std::invalid_argument(name + " has no table header of version 1");
  }
  mask_ = head.buckets - 1;
  epoch_ = head.epoch;
}

bool TableReader::superseded() const {
  return reinterpret_cast<const TableHeader*>(memory_.data())->superseded.load(kAcquire) != 0;
}

inline const TableBucket& TableReader::bucket(uint64_t half) const {
  return reinterpret_cast<const TableBucket*>(memory_.data() + kTableHeaderBytes)[half & mask_];
}

inline uint8_t TableReader::tier_of(const Tag& tag) const {
  const TableBucket& first_bucket = bucket(tag.half[0]);
  const TableBucket& second_bucket = bucket(tag.half[1]);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Reading first = read_bucket(first_bucket, tag);
    const Reading second = read_bucket(second_bucket, tag);
    const int tier = std::max(first.stable ? first.tier : 0, second.stable ? second.tier : 0);
    if (tier != 0) return static_cast<uint8_t>(tier);
    if (first.stable && second.stable && first_bucket.version.load(kRelaxed) == first.version) {
      return 0;
    }
    back_off(attempt);
  }
  return 0;
}

namespace {
constexpr size_t kBatch = 64;  // keys whose buckets are on their way at once
}

void TableReader::lookup(const TagSecret& secret, std::span<const uint8_t> keys,
                         uint8_t* tiers) const {
  std::array<Tag, 2 * kBatch> tags;
  const size_t count = keys.size() / 32;
  // One batch ahead: while the buckets of a batch come, the one before it is looked up.
  for (size_t from = 0; from < count + kBatch; from += kBatch) {
    if (from < count) {
      Tag* const batch = tags.data() + from % (2 * kBatch);
      const size_t size = std::min(kBatch, count - from);
      tags_of(secret, keys.data() + 32 * from, size, batch);
      for (size_t i = 0; i < size; ++i) {
        __builtin_prefetch(&bucket(batch[i].half[0]));
        __builtin_prefetch(&bucket(batch[i].half[1]));
      }
    }
    if (from == 0) continue;
    for (size_t i = from - kBatch; i < std::min(from, count); ++i) {
      tiers[i] = tier_of(tags[i % (2 * kBatch)]);
    }
  }
}

size_t TableReader::leading(const TagSecret& secret, std::span<const uint8_t> keys) const {
  std::array<uint8_t, kBatch> tiers;
  const size_t count = keys.size() / 32;
  for (size_t from = 0; from < count; from += kBatch) {
    const size_t size = std::min(kBatch, count - from);
    lookup(secret, keys.subspan(32 * from, 32 * size), tiers.data());
    const auto end = tiers.begin() + static_cast<ptrdiff_t>(size);
    const auto miss = std::find(tiers.begin(), end, uint8_t{0});
    if (miss != end) return from + static_cast<size_t>(miss - tiers.begin());
  }
  return count;
}

}  // namespace evoke
