// Which rows are in the published table, and its growth a few rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rows.hpp"
#include "table.hpp"

namespace evoke {

// Owned by the thread that owns the rows. The table doubles up to max_buckets: the next one is
// filled by the calls of publish, each of which does a bounded part of it (about a microsecond),
// and then takes the place of the old one, whose epoch it exceeds by one. Tables of up to 2 MiB are
// filled at once.
class Publisher {
 public:
  Publisher(RowStore* rows, size_t buckets, size_t max_buckets);

  // The row is visible, and was made, or unpublished, just before.
  void publish(uint32_t row);
  void unpublish(uint32_t row);
  // Room came free: one of the rows that found no bucket may find one now.
  void retry_waiting();

  const TableWriter& table() const { return *table_; }
  bool is_growing() const { return next_ != nullptr; }
  size_t unpublished() const { return unpublished_; }
  size_t size_bytes() const;
  // std::logic_error when a visible row is not where its marks say, or a count is wrong.
  void check() const;

 private:
  struct Waiting {  // a row that found no bucket
    uint32_t row;
    uint32_t generation;
  };

  static bool is_in(const Row& row, const TableWriter& table);
  static void mark(Row* row, const TableWriter& table, bool in);
  void insert(uint32_t number, TableWriter* table);
  void begin_growth();
  void grow(size_t rows);
  void finish_growth();

  RowStore& rows_;
  std::unique_ptr<TableWriter> table_;
  std::unique_ptr<TableWriter> next_;  // while the table grows
  uint32_t next_row_ = 0;              // rows below are in next_, or found no bucket there
  size_t max_buckets_;
  size_t grow_above_entries_ = 0;  // after a refusal: not before there are this many
  size_t unpublished_ = 0;
  size_t calls_ = 0;              // since the growth began
  std::vector<Waiting> waiting_;  // and some that have been published or erased since
  size_t next_waiting_ = 0;
};

}  // namespace evoke
