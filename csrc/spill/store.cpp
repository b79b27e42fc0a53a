#include "store.hpp"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "../kernels.hpp"

namespace evoke {
namespace {

constexpr unsigned kRefMemoryShift = 56;
constexpr uint64_t kRefOffsetMask = (uint64_t{1} << kRefMemoryShift) - 1;
constexpr int kCloseWaitMs = 5000;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

std::string writing_name(uint32_t namespace_number, const Key& key) {
  return std::to_string(namespace_number) + ":" + std::string(key.begin(), key.end());
}

// Runs in the I/O thread after a read: what must be true of the bytes.
struct ReadCheck {
  SlotHeader expected;
  uint64_t sum;
  bool has_header, verify;
  std::vector<Buffers::Bounce> bounces;

  void operator()(IoJob& job) const {
    job.corrupt = !is_right(job);
    if (job.corrupt) return;
    for (const Buffers::Bounce& bounce : bounces) {
      std::memcpy(bounce.place, bounce.pages, bounce.length_bytes);
    }
  }

  bool is_right(IoJob& job) const {
    std::vector<PartInfo> parts = expected.parts;
    if (has_header) {
      SlotHeader found;
      if (!decode_slot_header(job.pieces[0].memory, &found)) return false;
      const bool same = found.key == expected.key && found.namespace_id == expected.namespace_id &&
                        found.generation == expected.generation &&
                        found.chain_index == expected.chain_index &&
                        found.parts.size() == parts.size() && payload_sum(found.parts) == sum;
      if (!same) return false;
      for (size_t i = 0; i < parts.size(); i++) {
        if (found.parts[i].length_bytes != parts[i].length_bytes) return false;
        parts[i].sum = found.parts[i].sum;
      }
    }
    for (size_t i = 0; i < parts.size(); i++) {
      const uint8_t* bytes = job.pieces[i + (has_header ? 1 : 0)].memory;
      if (verify && xxh3_64(bytes, parts[i].length_bytes) != parts[i].sum) return false;
      job.sums.push_back(parts[i].sum);
    }
    return true;
  }
};

}  // namespace

SpillStore::~SpillStore() {
  if (!closed_) close(kCloseWaitMs);
}

// ------------------------------------------------------------------ what is asked

std::span<const uint32_t> SpillStore::live(std::span<const uint32_t> slots) const {
  for (const uint32_t slot : slots) {
    if (!catalog_.is_live(slot)) {
      throw std::invalid_argument("slots: " + std::to_string(slot) + " holds no block");
    }
  }
  return slots;
}

const Key& SpillStore::need_namespace(uint32_t number) const {
  const auto at = namespaces_.find(number);
  if (at == namespaces_.end()) {
    throw std::invalid_argument("namespace: " + std::to_string(number) + " is not known");
  }
  return at->second;
}

uint32_t SpillStore::add_namespace(const Key& id) {
  const std::string name(id.begin(), id.end());
  const auto known = namespace_numbers_.find(name);
  if (known != namespace_numbers_.end()) return known->second;
  if (next_namespace_ > UINT16_MAX) {  // rare: numbers of namespaces without blocks come back
    namespace_numbers_.clear();
    drop_unused_namespaces();
    next_namespace_ = 1;
    while (namespaces_.contains(next_namespace_)) next_namespace_++;
    if (next_namespace_ > UINT16_MAX) {
      throw std::invalid_argument("id: 65535 namespaces have blocks here");
    }
  }
  const uint32_t number = next_namespace_++;
  while (namespaces_.contains(next_namespace_)) next_namespace_++;
  namespaces_[number] = id;
  namespace_numbers_[name] = number;
  Record record;
  record.kind = RecordKind::kNamespace;
  record.namespace_number = number;
  record.key = id;
  journal_->append({record}, 0);
  return number;
}

std::vector<uint32_t> SpillStore::find(uint32_t namespace_number,
                                       std::span<const uint8_t> keys) const {
  if (keys.size() % sizeof(Key) != 0) {
    throw std::invalid_argument("keys: " + std::to_string(keys.size()) +
                                " bytes, not a multiple of 32");
  }
  need_namespace(namespace_number);
  std::vector<uint32_t> slots(keys.size() / sizeof(Key));
  for (size_t i = 0; i < slots.size(); i++) {
    slots[i] = catalog_.find(static_cast<uint16_t>(namespace_number), &keys[i * sizeof(Key)]);
  }
  return slots;
}

void SpillStore::link(uint32_t namespace_number, std::span<const uint8_t> keys) {
  const std::vector<uint32_t> slots = find(namespace_number, keys);
  for (size_t i = 1; i < slots.size(); i++) {
    if (slots[i] != kNoSlot && slots[i - 1] != kNoSlot) catalog_.set_parent(slots[i], slots[i - 1]);
  }
}

std::vector<uint32_t> SpillStore::victims(size_t count, uint64_t bytes,
                                          uint64_t block_bytes) const {
  const uint64_t slot_bytes = block_bytes == 0 ? 0 : kPageBytes + pages_up(block_bytes);
  return catalog_.victims(count, bytes, slot_bytes);
}

std::vector<uint32_t> SpillStore::slots_of(uint32_t namespace_number) const {
  need_namespace(namespace_number);
  std::vector<uint32_t> slots = catalog_.live_slots();
  std::erase_if(slots,
                [&](uint32_t slot) { return catalog_[slot].namespace_number != namespace_number; });
  return slots;
}

void SpillStore::erase(std::span<const uint32_t> slots) {
  std::vector<Record> records;
  for (const uint32_t slot : live(slots)) {
    if (catalog_.is_live(slot)) erase_one(slot, &records);  // named twice counts once
  }
  if (!records.empty()) journal_->append(records, 0);
}

void SpillStore::erase_one(uint32_t slot, std::vector<Record>* records) {
  Record record;
  record.kind = RecordKind::kFree;
  record.segment = segment_of(slot);
  record.index = index_of(slot);
  record.generation = catalog_[slot].generation;
  records->push_back(record);
  catalog_.erase(slot);
}

// ------------------------------------------------------------------ transfers

Buffers SpillStore::buffers_of(std::span<const uint64_t> refs,
                               std::span<const PartInfo> parts) const {
  if (refs.size() != parts.size() || parts.empty() || parts.size() > kMaxParts) {
    throw std::invalid_argument("refs: " + std::to_string(refs.size()) + " for " +
                                std::to_string(parts.size()) + " parts, allowed 1 to 256");
  }
  Buffers buffers;
  for (size_t i = 0; i < refs.size(); i++) {
    const uint64_t number = refs[i] >> kRefMemoryShift;
    const uint64_t offset = refs[i] & kRefOffsetMask;
    const uint64_t length = parts[i].length_bytes;
    const IoMemory memory = number < memories_.size() ? memories_[number] : IoMemory{nullptr, 0};
    if (length == 0 || offset > memory.bytes || length > memory.bytes - offset) {
      throw std::invalid_argument("refs: " + std::to_string(refs[i]) + " with " +
                                  std::to_string(length) + " bytes is not in a memory");
    }
    uint8_t* place = memory.address + offset;
    const uint64_t bytes = pages_up(length);
    const bool is_whole = reinterpret_cast<uintptr_t>(place) % kPageBytes == 0;
    if (is_whole && bytes <= memory.bytes - offset) {
      buffers.pieces.push_back({place, bytes});
      continue;
    }
    buffers.pages.push_back(make_pages(bytes));
    uint8_t* pages = buffers.pages.back().get();
    std::memset(pages + bytes - kPageBytes, 0, kPageBytes);
    buffers.bounces.push_back({place, pages, parts[i].length_bytes});
    buffers.pieces.push_back({pages, bytes});
  }
  return buffers;
}

uint32_t SpillStore::take_slot(uint64_t slot_bytes) {
  uint32_t carved = kNoSlot;
  const auto ready = static_cast<uint32_t>(journal_->segments_ready());
  const uint32_t slot = catalog_.take(slot_bytes, ready, &carved);
  if (carved != kNoSlot) {
    Record record;
    record.kind = RecordKind::kSegment;
    record.segment = carved;
    record.sum = slot_bytes;
    journal_->append({record}, 0);
  }
  return slot;
}

uint64_t SpillStore::write(const BlockToWrite& block, int64_t deadline_ms) {
  const Key& id = need_namespace(block.namespace_number);
  Buffers buffers = buffers_of(block.refs, block.parts);
  const auto space = static_cast<uint16_t>(block.namespace_number);
  const std::string name = writing_name(space, block.key);
  if (catalog_.find(space, block.key.data()) != kNoSlot || writing_.contains(name)) return 0;
  const uint64_t slot_bytes = kPageBytes + payload_bytes(block.parts);
  if (slot_bytes > header_.segment_bytes) return 0;
  const uint32_t slot = take_slot(slot_bytes);
  if (slot == kNoSlot) return 0;
  SlotEntry& entry = catalog_[slot];
  entry.key = block.key;
  entry.sum = payload_sum(block.parts);
  entry.generation = next_generation_++;
  entry.length_bytes = block.parts.size() == 1 ? block.parts[0].length_bytes
                                               : static_cast<uint32_t>(payload_bytes(block.parts));
  entry.chain_index = block.chain_index;
  entry.namespace_number = space;
  entry.parts = static_cast<uint16_t>(block.parts.size());
  entry.verified = true;
  auto job = std::make_unique<IoJob>();
  job->is_write = true;
  job->fd = files_->segment_fd(segment_of(slot));
  job->offset = catalog_.offset_of(slot);
  job->pages = std::move(buffers.pages);
  job->pages.push_back(make_pages(kPageBytes));
  encode_slot_header({block.key, id, entry.generation, block.chain_index, block.state, block.parts},
                     job->pages.back().get());
  job->pieces.push_back({job->pages.back().get(), kPageBytes});
  job->pieces.insert(job->pieces.end(), buffers.pieces.begin(), buffers.pieces.end());
  for (const Buffers::Bounce& bounce : buffers.bounces) {
    std::memcpy(bounce.pages, bounce.place, bounce.length_bytes);
  }
  const uint64_t ticket =
      submit(std::move(job), {SpillKind::kWrite, slot, 0, block.parent, block.state}, deadline_ms);
  writing_[name] = ticket;
  return ticket;
}

uint64_t SpillStore::read(uint32_t slot, std::span<const uint64_t> refs,
                          std::span<const uint32_t> lengths_bytes, bool verify,
                          int64_t deadline_ms) {
  live({&slot, 1});
  SlotEntry& entry = catalog_[slot];
  std::vector<PartInfo> parts;
  for (const uint32_t length : lengths_bytes) parts.push_back({entry.sum, length});
  const uint64_t bytes = parts.size() == 1 ? parts[0].length_bytes : payload_bytes(parts);
  if (parts.size() != entry.parts || bytes != entry.length_bytes) {
    throw std::invalid_argument("lengths: " + std::to_string(parts.size()) + " parts, " +
                                std::to_string(bytes) + " bytes; the block has " +
                                std::to_string(entry.parts) + ", " +
                                std::to_string(entry.length_bytes));
  }
  Buffers buffers = buffers_of(refs, parts);
  if (entry.reads == UINT8_MAX) return 0;
  const bool has_header = !entry.verified || entry.parts > 1;
  auto job = std::make_unique<IoJob>();
  job->fd = files_->segment_fd(segment_of(slot));
  job->offset = catalog_.offset_of(slot) + (has_header ? 0 : kPageBytes);
  job->pages = std::move(buffers.pages);
  if (has_header) {
    job->pages.push_back(make_pages(kPageBytes));
    job->pieces.push_back({job->pages.back().get(), kPageBytes});
  }
  job->pieces.insert(job->pieces.end(), buffers.pieces.begin(), buffers.pieces.end());
  job->after = ReadCheck{{entry.key, namespaces_.at(entry.namespace_number), entry.generation,
                          entry.chain_index, State{}, std::move(parts)},
                         entry.sum,
                         has_header,
                         verify,
                         std::move(buffers.bounces)};
  entry.reads++;
  return submit(std::move(job), {SpillKind::kRead, slot}, deadline_ms);
}

uint64_t SpillStore::submit(IoJobPtr job, Transfer transfer, int64_t deadline_ms) {
  const uint64_t ticket = next_ticket_++;
  if (deadline_ms > 0) transfer.deadline_ms = now_ms() + deadline_ms;
  transfers_[ticket] = std::move(transfer);
  if (job != nullptr) {
    job->ticket = ticket;
    engine_->submit(std::move(job));
  }
  if (deadline_ms > 0) set_timer();
  return ticket;
}

uint64_t SpillStore::sync() {
  const uint64_t ticket = submit(nullptr, {SpillKind::kSync}, 0);
  journal_->sync(ticket);
  return ticket;
}

uint64_t SpillStore::probe(int64_t deadline_ms) {
  const uint64_t ticket = submit(nullptr, {SpillKind::kProbe}, deadline_ms);
  journal_->probe(ticket);
  return ticket;
}

}  // namespace evoke
