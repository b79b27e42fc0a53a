#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <stdexcept>
#include <thread>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace evoke {
namespace {

constexpr size_t kPrefaultChunkBytes = size_t{16} << 20;
constexpr size_t kMaxCapacityBytes = size_t{1} << 56;  // a ref's offset has 56 bits
constexpr size_t kSlabBytes = kSlabGranules * kGranuleBytes;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
size_t ceil_div(size_t value, size_t unit) { return (value + unit - 1) / unit; }

size_t checked_granules(size_t capacity_bytes) {
  if (capacity_bytes == 0 || capacity_bytes > kMaxCapacityBytes) {
    throw std::invalid_argument("capacity_bytes: " + std::to_string(capacity_bytes) +
                                " is not in 1..2^56");
  }
  return ceil_div(capacity_bytes, kGranuleBytes);
}

// Faults a range in. 0 or an errno.
int populate(uint8_t* from, size_t length_bytes) {
  while (madvise(from, length_bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    // Linux before 5.14. An atomic "or 0" leaves a block that is in use as it is.
    for (size_t at = 0; at < length_bytes; at += 4096) {
      __atomic_fetch_or(from + at, uint8_t{0}, __ATOMIC_RELAXED);
    }
    return 0;
  }
  return 0;
}

}  // namespace

Arena::Arena(size_t capacity_bytes, Backing want, bool lock, int node)
    : Arena(map_arena(checked_granules(capacity_bytes) * kGranuleBytes, want, node), lock, node) {}

Arena::Arena(const std::string& device, size_t capacity_bytes)
    : Arena(map_device(device, checked_granules(capacity_bytes) * kGranuleBytes), false, kAnyNode) {
}

Arena::Arena(ArenaMemory mapped, bool lock, int node)
    : memory_(std::move(mapped.memory)),
      backing_(mapped.backing),
      granules_(memory_.size() / kGranuleBytes),
      lock_wanted_(lock),
      node_(node),
      granule_map_(granules_),
      extent_of_granule_(granules_, 0) {}

Arena::~Arena() { close(); }

const char* Arena::backing() const {
  switch (backing_) {
    case Backing::kHugetlb:
      return "hugetlb";
    case Backing::kThp:
      return "thp";
    case Backing::kDevice:
      return "device";
    default:
      return "4k";
  }
}

void Arena::require_open() const {
  if (closing_.load(std::memory_order_relaxed)) throw std::invalid_argument("arena: closed");
}

void Arena::close() {
  closing_.store(true, std::memory_order_relaxed);
  const std::scoped_lock lock(prefault_mutex_);
  memory_ = Mapping();
}

void Arena::prefault_chunks(std::atomic<size_t>& next, std::atomic<int>& error) {
  const size_t length = capacity_bytes();
  while (error.load(std::memory_order_relaxed) == 0) {
    if (closing_.load(std::memory_order_relaxed)) error.store(ECANCELED, std::memory_order_relaxed);
    const size_t at = next.fetch_add(kPrefaultChunkBytes, std::memory_order_relaxed);
    if (at >= length) return;
    const size_t bytes = std::min(kPrefaultChunkBytes, length - at);
    if (const int failed = populate(memory_.data() + at, bytes)) {
      error.store(failed, std::memory_order_relaxed);
      return;
    }
    prefaulted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void Arena::prefault(size_t threads) {
  const std::scoped_lock lock(prefault_mutex_);
  require_open();
  prefaulted_bytes_.store(0, std::memory_order_relaxed);
  std::atomic<size_t> next{0};
  std::atomic<int> error{0};
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < threads; ++i) {
      helpers.emplace_back([this, &next, &error] { prefault_chunks(next, error); });
    }
    prefault_chunks(next, error);
  }
  if (const int failed = error.load(std::memory_order_relaxed)) {
    throw_system_error(failed, "arena: faulted " + std::to_string(prefaulted_bytes()) + " of " +
                                   std::to_string(capacity_bytes()) + " bytes");
  }
  // No room under RLIMIT_MEMLOCK is an answer, seen in locked().
  if (lock_wanted_) {
    // Not mlock, which the sanitizers turn into nothing.
    const bool locked = mlock2(memory_.data(), capacity_bytes(), 0) == 0;
    locked_.store(locked, std::memory_order_relaxed);
  }
}

Placement Arena::placement(int node) const {
  require_open();
  const size_t page_bytes = backing_ == Backing::k4k ? 4096 : kGranuleBytes;
  return placement_of(memory_.data(), capacity_bytes(), page_bytes, node);
}

bool Arena::can_ever_hold(size_t block_bytes) const {
  return block_bytes > 0 && block_bytes <= kSlabBytes &&
         round_up(block_bytes, kBlockAlignBytes) <= std::min(kSlabBytes, capacity_bytes());
}

Arena::Extent* Arena::extent_with_room(size_t block_bytes) {
  const auto it = roomy_.find(block_bytes);
  if (it == roomy_.end()) return new_extent(block_bytes);
  return &extents_[extent_of_granule_[*it->second.begin()] - 1];
}

Arena::Extent* Arena::new_extent(size_t block_bytes) {
  const size_t stride = round_up(block_bytes, kBlockAlignBytes);
  const size_t one_block = ceil_div(stride, kGranuleBytes);
  GranuleMap::Run run = granule_map_.take(ideal_extent_granules(stride, granules_), one_block);
  if (run.count == 0) return nullptr;
  const size_t blocks = run.count * kGranuleBytes / stride;
  const size_t needed = ceil_div(blocks * stride, kGranuleBytes);
  if (needed < run.count) granule_map_.give_back({run.first + needed, run.count - needed});
  run.count = needed;

  uint32_t number = static_cast<uint32_t>(extents_.size());
  if (unused_extents_.empty()) {
    extents_.emplace_back();
  } else {
    number = unused_extents_.back();
    unused_extents_.pop_back();
  }
  Extent& extent = extents_[number];
  extent = {run, block_bytes, stride, blocks, 0, 0, {}};
  extent.free.assign(ceil_div(blocks, 64), ~uint64_t{0});
  if (blocks % 64 != 0) extent.free.back() = (uint64_t{1} << blocks % 64) - 1;
  std::fill_n(extent_of_granule_.begin() + static_cast<ptrdiff_t>(run.first), run.count,
              number + 1);
  roomy_[block_bytes].insert(run.first);
  extent_bytes_ += run.count * kGranuleBytes;
  usable_bytes_ += blocks * block_bytes;
  return &extent;
}

void Arena::drop_extent(uint32_t number) {
  Extent& extent = extents_[number];
  assert(extent.used == 0);
  const auto it = roomy_.find(extent.block_bytes);
  it->second.erase(extent.run.first);
  if (it->second.empty()) roomy_.erase(it);
  std::fill_n(extent_of_granule_.begin() + static_cast<ptrdiff_t>(extent.run.first),
              extent.run.count, 0);
  granule_map_.give_back(extent.run);
  extent_bytes_ -= extent.run.count * kGranuleBytes;
  usable_bytes_ -= extent.blocks * extent.block_bytes;
  extent = {};
  unused_extents_.push_back(number);
}

uint64_t Arena::take_block(Extent& extent) {
  size_t word = extent.first_free_word;
  while (extent.free[word] == 0) ++word;
  extent.first_free_word = word;
  const size_t block = word * 64 + static_cast<size_t>(std::countr_zero(extent.free[word]));
  extent.free[word] &= extent.free[word] - 1;
  if (++extent.used == extent.blocks) {
    const auto it = roomy_.find(extent.block_bytes);
    it->second.erase(extent.run.first);
    if (it->second.empty()) roomy_.erase(it);
  }
  allocated_bytes_ += extent.block_bytes;
  ++blocks_;
  return extent.run.first * kGranuleBytes + block * extent.stride_bytes;
}

std::vector<uint64_t> Arena::allocate(size_t block_bytes, size_t count) {
  require_open();
  if (block_bytes == 0) throw std::invalid_argument("block_bytes: 0");
  std::vector<uint64_t> offsets;
  if (!can_ever_hold(block_bytes)) return offsets;
  offsets.reserve(std::min(count, capacity_bytes() / round_up(block_bytes, kBlockAlignBytes)));
  while (offsets.size() < count) {
    Extent* extent = extent_with_room(block_bytes);
    if (!extent) break;
    while (offsets.size() < count && extent->used < extent->blocks) {
      offsets.push_back(take_block(*extent));
    }
  }
  return offsets;
}

// The extent and number of the allocated block at offset, or null.
Arena::Extent* Arena::allocated_block(uint64_t offset, size_t* block) {
  if (offset >= capacity_bytes()) return nullptr;
  const uint32_t number = extent_of_granule_[offset / kGranuleBytes];
  if (number == 0) return nullptr;
  Extent& extent = extents_[number - 1];
  const size_t inside = offset - extent.run.first * kGranuleBytes;
  *block = inside / extent.stride_bytes;
  if (inside % extent.stride_bytes != 0 || *block >= extent.blocks) return nullptr;
  return extent.free[*block / 64] >> *block % 64 & 1 ? nullptr : &extent;
}

void Arena::free(std::span<const uint64_t> offsets) {
  require_open();
  // Marking as we go finds an offset that is named twice; a bad one takes the marks back.
  size_t block = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (Extent* extent = allocated_block(offsets[i], &block)) {
      extent->free[block / 64] |= uint64_t{1} << block % 64;
      continue;
    }
    const std::string problem = "offsets[" + std::to_string(i) + "]: no block is allocated at " +
                                std::to_string(offsets[i]) + " (or it is named twice)";
    while (i-- > 0) {
      Extent& marked = extents_[extent_of_granule_[offsets[i] / kGranuleBytes] - 1];
      block = (offsets[i] - marked.run.first * kGranuleBytes) / marked.stride_bytes;
      marked.free[block / 64] &= ~(uint64_t{1} << block % 64);
    }
    throw std::invalid_argument(problem);
  }
  for (const uint64_t offset : offsets) {
    const uint32_t number = extent_of_granule_[offset / kGranuleBytes] - 1;
    Extent& extent = extents_[number];
    block = (offset - extent.run.first * kGranuleBytes) / extent.stride_bytes;
    extent.first_free_word = std::min(extent.first_free_word, block / 64);
    if (extent.used == extent.blocks) roomy_[extent.block_bytes].insert(extent.run.first);
    allocated_bytes_ -= extent.block_bytes;
    --blocks_;
    if (--extent.used == 0) drop_extent(number);
  }
}

std::vector<Arena::ExtentInfo> Arena::extents() const {
  std::vector<ExtentInfo> infos;
  for (const Extent& extent : extents_) {
    if (extent.run.count == 0) continue;
    infos.push_back({extent.run.first * kGranuleBytes, extent.run.count * kGranuleBytes,
                     extent.block_bytes, extent.used, extent.blocks});
  }
  std::sort(infos.begin(), infos.end(),
            [](const ExtentInfo& a, const ExtentInfo& b) { return a.offset < b.offset; });
  return infos;
}

Arena::Stats Arena::stats() const {
  return {capacity_bytes(),
          allocated_bytes_,
          extent_bytes_,
          granule_map_.free_granules() * kGranuleBytes,
          granule_map_.longest_run() * kGranuleBytes,
          extent_bytes_ - usable_bytes_,
          blocks_};
}

}  // namespace evoke
