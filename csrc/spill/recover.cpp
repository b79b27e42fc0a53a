// Opening a flash directory: what its index says, into the catalog.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <unordered_set>

#include "store.hpp"

namespace evoke {
namespace {

constexpr uint64_t kSegmentBytesLeast = uint64_t{64} << 20;
constexpr uint64_t kSegmentBytesMost = uint64_t{1} << 30;
constexpr uint64_t kSegmentBytesMax = (uint64_t{1} << 32) - kPageBytes;  // lengths are u32
constexpr size_t kChunkRecords = 8192;
constexpr unsigned kEpochShift = 40;

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

void check(const SpillOptions& options) {
  const auto say = [](const char* name, uint64_t value, const char* allowed) {
    refuse(std::string(name) + ": " + std::to_string(value) + ", allowed " + allowed);
  };
  if (options.depth < 1 || options.depth > 64) say("depth", options.depth, "1 to 64");
  if (options.capacity_bytes < 2 * kPageBytes) {
    say("capacity_bytes", options.capacity_bytes, "8192 and more");
  }
  const uint64_t segment = options.segment_bytes;
  if (segment != 0 &&
      (segment < 2 * kPageBytes || segment % kPageBytes != 0 || segment > kSegmentBytesMax)) {
    say("segment_bytes", segment, "multiples of 4096 from 8192 to 4294963200");
  }
  if (segment > options.capacity_bytes) {
    say("segment_bytes", segment, "no more than capacity_bytes");
  }
}

uint64_t segment_bytes_for(const SpillOptions& options) {
  if (options.segment_bytes != 0) return options.segment_bytes;
  const uint64_t wanted =
      std::clamp(options.capacity_bytes / 64, kSegmentBytesLeast, kSegmentBytesMost);
  return std::min(wanted, options.capacity_bytes) / kPageBytes * kPageBytes;
}

}  // namespace

SpillStore::SpillStore(const SpillOptions& options) : catalog_(0, 0), memories_(options.memories) {
  check(options);
  files_ = std::make_shared<SpillFiles>(options.directory);
  recover(options);
  start(options);
}

void SpillStore::recover(const SpillOptions& options) {
  const Fd index = files_->open_index();
  bool is_new = true;
  if (index.get() >= 0) {
    std::vector<uint8_t> page(kPageBytes);
    const int64_t bytes = read_all(index.get(), page.data(), page.size(), 0);
    if (bytes < 0) throw_system_error(static_cast<int>(-bytes), options.directory + ": index");
    uint32_t version = 0;
    const IndexFault fault = decode_index_header(page.data(), &header_, &version);
    if (fault == IndexFault::kNewer) {
      refuse("flash directory " + options.directory + " has format " + std::to_string(version) +
             ", this version reads up to " + std::to_string(kSpillVersion) +
             "; it was left as it is");
    }
    recovered_.damaged = fault == IndexFault::kDamaged;
    is_new = recovered_.damaged || header_.segment_bytes > options.capacity_bytes;
  }
  // Then all segments are made anew: no slot is left that has a generation.
  if (is_new) header_.segment_bytes = segment_bytes_for(options);
  header_.epoch++;
  next_generation_ = (header_.epoch << kEpochShift) + 1;
  const auto segments = static_cast<uint32_t>(
      std::min<uint64_t>(options.capacity_bytes / header_.segment_bytes, kSegmentsMax));
  catalog_ = Catalog(segments, header_.segment_bytes);
  files_->open_segments(segments, header_.segment_bytes, is_new, options.direct);
  std::vector<Found> found;
  if (!is_new) read_records(index.get(), &found);
  commit_found(found);
  drop_unused_namespaces();
  uint64_t records = 0;
  const int error = rewrite_index(*files_, keep(), &records);
  if (error != 0) throw_system_error(error, options.directory + ": index");
  recovered_.blocks = catalog_.stats().blocks;
  eventfd_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (eventfd_.get() < 0) throw_system_error(errno, "eventfd");
  journal_ = std::make_shared<Journal>(files_, records, eventfd_.get());
}

void SpillStore::read_records(int fd, std::vector<Found>* found) {
  std::vector<uint8_t> chunk(kChunkRecords * kRecordBytes);
  for (uint64_t offset = kPageBytes;; offset += chunk.size()) {
    const int64_t bytes = read_all(fd, chunk.data(), chunk.size(), offset);
    if (bytes < 0) throw_system_error(static_cast<int>(-bytes), files_->directory() + ": index");
    const size_t records = static_cast<size_t>(bytes) / kRecordBytes;
    for (size_t i = 0; i < records; i++) {
      Record record;
      recovered_.records++;
      if (decode_record(chunk.data() + i * kRecordBytes, &record)) {
        apply(record, found);
      } else {
        recovered_.bad_records++;  // what it said is a miss, or is found out at the first read
      }
    }
    if (records < kChunkRecords) return;
  }
}

void SpillStore::apply(const Record& record, std::vector<Found>* found) {
  if (record.kind == RecordKind::kNamespace) {
    if (record.namespace_number > UINT16_MAX) return;
    namespaces_[record.namespace_number] = record.key;
    next_namespace_ = std::max(next_namespace_, record.namespace_number + 1);
    return;
  }
  if (record.kind == RecordKind::kPlace) return place(record, found);
  if (record.segment >= catalog_.segments()) return;
  const uint32_t slots = catalog_.segment(record.segment).slots;
  if (record.kind == RecordKind::kSegment) {
    for (uint32_t index = 0; index < slots; index++) {
      const uint32_t slot = slot_number(record.segment, index);
      if (catalog_[slot].state == SlotState::kTaken) catalog_.give_back(slot);
    }
    catalog_.carve(record.segment, record.sum);
  } else if (record.index < slots) {
    const uint32_t slot = slot_number(record.segment, record.index);
    const bool same = catalog_[slot].generation == record.generation;
    if (same && catalog_[slot].state == SlotState::kTaken) catalog_.give_back(slot);
  }
}

void SpillStore::place(const Record& record, std::vector<Found>* found) {
  const bool is_here = record.segment < catalog_.segments() &&
                       record.index < catalog_.segment(record.segment).slots &&
                       files_->segment_fd(record.segment) >= 0;
  const bool makes_sense = record.generation != 0 && record.parts >= 1 &&
                           record.parts <= kMaxParts && record.length_bytes > 0 &&
                           namespaces_.contains(record.namespace_number);
  if (!is_here || !makes_sense ||
      pages_up(record.length_bytes) + kPageBytes > catalog_.segment(record.segment).slot_bytes) {
    recovered_.dropped_blocks++;
    return;
  }
  const uint32_t slot = slot_number(record.segment, record.index);
  if (catalog_[slot].state == SlotState::kTaken) catalog_.give_back(slot);
  catalog_.take_at(slot);
  SlotEntry& entry = catalog_[slot];
  entry.key = record.key;
  entry.sum = record.sum;
  entry.generation = record.generation;
  entry.length_bytes = record.length_bytes;
  entry.chain_index = record.chain_index;
  entry.namespace_number = static_cast<uint16_t>(record.namespace_number);
  entry.parts = record.parts;
  found->push_back({slot, record.generation, record.parent, record.state});
}

void SpillStore::commit_found(std::vector<Found>& found) {
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.generation < b.generation; });
  const auto is_current = [this](const Found& place) {
    const SlotEntry& entry = catalog_[place.slot];
    return entry.state != SlotState::kFree && entry.generation == place.generation;
  };
  const auto parent_of = [this](const Found& place) {
    const SlotEntry& entry = catalog_[place.slot];
    if (entry.chain_index == 0 || place.parent == decltype(place.parent){}) return kNoSlot;
    return catalog_.find_half(entry.namespace_number, place.parent.data(), entry.chain_index - 1);
  };
  std::erase_if(found, [&](const Found& place) { return !is_current(place); });
  for (const Found& place : found) {
    const SlotEntry& entry = catalog_[place.slot];
    if (entry.state == SlotState::kLive) continue;  // a record that is there twice
    const uint32_t twin = catalog_.find(entry.namespace_number, entry.key.data());
    if (twin != kNoSlot) catalog_.erase(twin);  // the later write counts
    catalog_.commit(place.slot, parent_of(place));
  }
  std::erase_if(found, [&](const Found& place) { return !is_current(place); });
  for (const Found& place : found) {  // children that were written before their parents
    const uint32_t parent = parent_of(place);
    if (parent != kNoSlot) catalog_.set_parent(place.slot, parent);
    if (place.state != State{}) states_.emplace_back(place.slot, place.state);
  }
}

void SpillStore::drop_unused_namespaces() {
  std::unordered_set<uint32_t> used;
  for (const uint32_t slot : catalog_.live_slots()) used.insert(catalog_[slot].namespace_number);
  std::erase_if(namespaces_, [&](const auto& item) { return !used.contains(item.first); });
  for (const auto& [number, id] : namespaces_) {
    namespace_numbers_[std::string(id.begin(), id.end())] = number;
  }
}

Keep SpillStore::keep() const {
  Keep keep;
  keep.header = header_;
  for (const auto& [number, id] : namespaces_) {
    Record record;
    record.kind = RecordKind::kNamespace;
    record.namespace_number = number;
    record.key = id;
    keep.preface.push_back(record);
  }
  keep.generations.resize(catalog_.segments());
  for (uint32_t number = 0; number < catalog_.segments(); number++) {
    const Segment& segment = catalog_.segment(number);
    if (segment.slots == 0) continue;
    Record record;
    record.kind = RecordKind::kSegment;
    record.segment = number;
    record.sum = segment.slot_bytes;
    keep.preface.push_back(record);
    for (const SlotEntry& entry : segment.entries) {
      keep.generations[number].push_back(entry.state == SlotState::kLive ? entry.generation : 0);
    }
  }
  return keep;
}

void SpillStore::start(const SpillOptions& options) {
  timer_ = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  poll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (timer_.get() < 0 || poll_.get() < 0) throw_system_error(errno, "timerfd, epoll");
  for (const int fd : {eventfd_.get(), timer_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      throw_system_error(errno, "epoll");
    }
  }
  if (options.uring) {
    std::vector<IoMemory> memories;
    for (const IoMemory& memory : memories_) {
      if (memory.bytes > 0) memories.push_back(memory);
    }
    engine_ = make_uring_engine(options.depth, eventfd_.get(), memories, &uring_refused_);
  }
  if (engine_ == nullptr) engine_ = make_thread_engine(options.depth, eventfd_.get());
  journal_->start();
  journal_->prepare();
}

}  // namespace evoke
