#include "publisher.hpp"

#include <cassert>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace evoke {
namespace {

constexpr size_t kSlotsPerBucket = 3;
// From 70 % to 90 % full (above it many find no bucket) there are 0.6 calls for each bucket. In
// these the next table, of 128 bytes for each bucket, and 2.7 rows have to be worked off.
constexpr size_t kRowsPerCall = 8;
constexpr size_t kReservedBytes = 64 << 10;  // with every kCallsPerReserve-th call
constexpr size_t kCallsPerReserve = 32;
constexpr size_t kAtOnceBytes = 2 << 20;

void require(bool holds, const char* what, uint64_t number) {
  if (!holds) throw std::logic_error("index: " + std::string(what) + " " + std::to_string(number));
}

}  // namespace

Publisher::Publisher(RowStore* rows, size_t buckets, size_t max_buckets)
    : rows_(*rows), table_(std::make_unique<TableWriter>(buckets, 1)), max_buckets_(max_buckets) {
  table_->reserve(table_->size_bytes());
}

// One bit for tables of even epochs and one for odd: the old table's and the next one's.
bool Publisher::is_in(const Row& row, const TableWriter& table) {
  return (row.published >> (table.epoch() & 1) & 1) != 0;
}

void Publisher::mark(Row* row, const TableWriter& table, bool in) {
  const unsigned bit = 1u << (table.epoch() & 1);
  row->published = static_cast<uint8_t>((in ? row->published | bit : row->published & ~bit) & 3);
}

void Publisher::insert(uint32_t number, TableWriter* table) {
  Row& row = rows_[number];
  const bool in = table->insert(row.tag, row.tier);
  mark(&row, *table, in);
  if (!in) waiting_.push_back({number, row.generation});
}

void Publisher::publish(uint32_t number) {
  const size_t room = table_->buckets() * kSlotsPerBucket;
  insert(number, table_.get());
  const bool in = is_in(rows_[number], *table_);
  if (!in) ++unpublished_;
  if (next_ != nullptr && number < next_row_) insert(number, next_.get());
  const size_t entries = table_->entries();
  // Below a quarter full only tags chosen to collide find no place; growing would not end that.
  if (entries * 10 > room * 7 || (!in && entries * 4 > room)) begin_growth();
  grow(kRowsPerCall);
}

void Publisher::unpublish(uint32_t number) {
  Row& row = rows_[number];
  for (TableWriter* table : {table_.get(), next_.get()}) {
    if (table == nullptr || (table == next_.get() && number >= next_row_)) continue;
    if (is_in(row, *table)) {
      [[maybe_unused]] const bool erased = table->erase(row.tag, row.tier);
      assert(erased);
    } else if (table == table_.get()) {
      --unpublished_;
    }
    mark(&row, *table, false);
  }
}

void Publisher::begin_growth() {
  if (next_ != nullptr) return;
  if (table_->buckets() >= max_buckets_ || table_->entries() < grow_above_entries_) return;
  try {
    next_ = std::make_unique<TableWriter>(2 * table_->buckets(), table_->epoch() + 1);
    if (next_->size_bytes() <= kAtOnceBytes + kTableHeaderBytes) {
      next_->reserve(next_->size_bytes());
      grow(std::numeric_limits<size_t>::max());
    }
  } catch (const std::system_error&) {
    // No memory: look-ups miss what finds no bucket, `unpublished` counts it; not tried each time.
    next_.reset();
    grow_above_entries_ = table_->entries() + table_->entries() / 8 + 1;
  }
}

void Publisher::grow(size_t rows) {
  if (next_ == nullptr) return;
  if (!next_->is_reserved()) {
    if (calls_++ % kCallsPerReserve != 0) return;
    try {
      next_->reserve(kReservedBytes);
    } catch (const std::system_error&) {
      next_.reset();
      calls_ = 0;
      grow_above_entries_ = table_->entries() + table_->entries() / 8 + 1;
    }
    return;
  }
  for (; rows > 0 && next_row_ < rows_.end(); --rows, ++next_row_) {
    if (rows_.is(next_row_, RowState::kVisible)) insert(next_row_, next_.get());
  }
  if (next_row_ >= rows_.end()) finish_growth();
}

void Publisher::finish_growth() {
  const size_t visible = table_->entries() + unpublished_;
  table_->supersede();
  table_ = std::move(next_);
  unpublished_ = visible - table_->entries();
  next_row_ = 0;
  calls_ = 0;
}

void Publisher::retry_waiting() {
  if (waiting_.empty() || next_ != nullptr) return;  // while it grows all are tried again anyway
  next_waiting_ = next_waiting_ + 1 < waiting_.size() ? next_waiting_ + 1 : 0;
  Waiting& entry = waiting_[next_waiting_];
  const Row& row = rows_[entry.row];
  const bool waits =
      row.state == RowState::kVisible && row.generation == entry.generation && !is_in(row, *table_);
  if (waits) {
    if (!table_->insert(row.tag, row.tier)) return;
    mark(&rows_[entry.row], *table_, true);
    --unpublished_;
  }
  entry = waiting_.back();
  waiting_.pop_back();
}

size_t Publisher::size_bytes() const {
  const size_t next_bytes = next_ == nullptr ? 0 : next_->size_bytes();
  return table_->size_bytes() + next_bytes + waiting_.capacity() * sizeof(Waiting);
}

void Publisher::check() const {
  for (const TableWriter* table : {table_.get(), next_.get()}) {
    if (table == nullptr) continue;
    const uint32_t end = table == table_.get() ? rows_.end() : next_row_;
    size_t in = 0;
    size_t out = 0;
    for (uint32_t number = 0; number < end; ++number) {
      const Row& row = rows_[number];
      if (row.state != RowState::kVisible) continue;
      ++(is_in(row, *table) ? in : out);
      require(!is_in(row, *table) || table->contains(row.tag, row.tier), "not in the table: row",
              number);
    }
    require(in == table->entries(), "table entries:", table->entries());
    require(table != table_.get() || out == unpublished_, "unpublished rows:", out);
  }
}

}  // namespace evoke
