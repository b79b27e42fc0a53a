#include "rows.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace evoke {

uint64_t Row::bytes() const {
  uint64_t sum_bytes = 0;
  for (uint32_t i = 0; i < part_count; ++i) sum_bytes += part(i).length_bytes;
  return sum_bytes;
}

RowStore::~RowStore() {
  for (uint32_t row = 0; row < end_; ++row) free_parts((*this)[row]);
}

uint32_t RowStore::make() {
  uint32_t number = free_first_;
  if (number == kNoRow) {
    if (end_ == kNoRow) throw std::length_error("index: all 2^32 - 1 rows are in use");
    if ((end_ & kChunkMask) == 0) chunks_.push_back(std::make_unique<Row[]>(kChunkMask + 1));
    number = end_++;
  } else {
    free_first_ = (*this)[number].links[kOfAll].newer;
    if (free_first_ == kNoRow) free_last_ = kNoRow;
  }
  Row& row = (*this)[number];
  const uint32_t generation = row.generation;
  row = Row{};
  row.generation = generation;
  row.parent = row.first_child = row.next_sibling = row.previous_sibling = kNoRow;
  return number;
}

void RowStore::release(uint32_t number) {
  Row& row = (*this)[number];
  free_parts(row);
  row.state = RowState::kDead;
  ++row.generation;
  row.links[kOfAll].newer = kNoRow;
  if (free_last_ == kNoRow) {
    free_first_ = number;
  } else {
    (*this)[free_last_].links[kOfAll].newer = number;
  }
  free_last_ = number;
}

void RowStore::free_parts(Row& row) {
  if (row.state == RowState::kDead || row.part_count == 1) return;
  part_bytes_ -= row.part_count * sizeof(Part);
  delete[] row.parts;
}

void RowStore::set_parts(Row& row, const Part* parts, uint16_t count) {
  row.part_count = count;
  if (count == 1) {
    row.ref = parts->ref;
    row.sum = parts->sum;
    row.length_bytes = parts->length_bytes;
    return;
  }
  row.parts = new Part[count];
  std::copy_n(parts, count, row.parts);
  part_bytes_ += count * sizeof(Part);
}

size_t RowStore::size_bytes() const {
  return chunks_.size() * (kChunkMask + 1) * sizeof(Row) + part_bytes_;
}

RowMap::RowMap() : slots_(1024, Slot{0, kNoRow}), mask_(slots_.size() - 1) {
  fill_random(secret_, sizeof secret_);
  secret_[1] |= 1;
}

void RowMap::place(Slot slot) {
  size_t at = home(slot.print);
  while (slots_[at].row != kNoRow) at = (at + 1) & mask_;
  slots_[at] = slot;
}

void RowMap::insert(uint64_t hash, uint32_t row) {
  if ((size_ + 1) * 4 > slots_.size() * 3) grow();
  place({static_cast<uint32_t>(hash >> 32), row});
  ++size_;
}

void RowMap::grow() {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(old.size() * 2, Slot{0, kNoRow});
  mask_ = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.row != kNoRow) place(slot);
  }
}

void RowMap::erase(uint64_t hash, uint32_t row) {
  size_t hole = home(hash >> 32);
  while (slots_[hole].row != row) {
    assert(slots_[hole].row != kNoRow);
    hole = (hole + 1) & mask_;
  }
  // Close the hole with every later entry of the run that may stand there.
  for (size_t at = (hole + 1) & mask_; slots_[at].row != kNoRow; at = (at + 1) & mask_) {
    const size_t from_home = (at - home(slots_[at].print)) & mask_;
    if (from_home < ((at - hole) & mask_)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole].row = kNoRow;
  --size_;
}

void RecencyList::add_newest(RowStore& rows, uint32_t row) {
  rows[row].links[which_] = {kNoRow, newest_};
  (newest_ == kNoRow ? oldest_ : rows[newest_].links[which_].newer) = row;
  newest_ = row;
}

void RecencyList::remove(RowStore& rows, uint32_t row) {
  const RecencyLinks links = rows[row].links[which_];
  (links.newer == kNoRow ? newest_ : rows[links.newer].links[which_].older) = links.older;
  (links.older == kNoRow ? oldest_ : rows[links.older].links[which_].newer) = links.newer;
}

void fill_random(void* at, size_t length_bytes) {
  auto* to = static_cast<uint8_t*>(at);
  while (length_bytes > 0) {
    const ssize_t got = getrandom(to, length_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "getrandom");
    to += got;
    length_bytes -= static_cast<size_t>(got);
  }
}

}  // namespace evoke
