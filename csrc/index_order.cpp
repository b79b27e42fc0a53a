// Of Index: what depends on recency and chain links, and publishing.
#include <algorithm>
#include <cassert>
#include <system_error>

#include "index.hpp"

namespace evoke {
namespace {

constexpr size_t kSlotsPerBucket = 3;

}  // namespace

uint32_t Index::next_stamp() {
  if (++stamp_ == 0) {
    for (uint32_t row = 0; row < rows_.end(); ++row) rows_[row].stamp = 0;
    stamp_ = 1;
  }
  return stamp_;
}

void Index::note(ChangeKind kind, uint32_t number, uint32_t other) {
  if (!following_) return;
  const Row& row = rows_[number];
  changes_.list.push_back({kind, number, other, row.tier, static_cast<uint32_t>(row.bytes())});
  if (kind != ChangeKind::kStored) return;
  changes_.keys.insert(changes_.keys.end(), row.key.begin(), row.key.end());
}

void Index::move_to_newest(uint32_t row) {
  recency_.move_to_newest(rows_, row);
  namespaces_[rows_[row].namespace_number].recency.move_to_newest(rows_, row);
}

void Index::touch(std::span<const uint32_t> rows) {
  require_visible(rows);
  const uint32_t stamp = next_stamp();
  std::vector<uint32_t> order;  // most recent first: each row after its ancestors, each row once
  order.reserve(rows.size());
  for (const uint32_t row : rows) {
    const auto from = static_cast<ptrdiff_t>(order.size());
    for (uint32_t at = row; at != kNoRow && rows_[at].stamp != stamp; at = rows_[at].parent) {
      rows_[at].stamp = stamp;
      order.push_back(at);
    }
    std::reverse(order.begin() + from, order.end());
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) move_to_newest(*it);
}

std::vector<uint32_t> Index::victims(size_t count, uint64_t bytes_wanted,
                                     int64_t namespace_number) {
  const RecencyList& list = namespace_number < 0
                                ? recency_
                                : namespace_at(static_cast<uint64_t>(namespace_number)).recency;
  // Children are less recent than their parent, so the walk meets them first: a row that stays
  // marks its parent, which then has to stay too.
  const uint32_t stays = next_stamp();
  std::vector<uint32_t> chosen;
  uint64_t bytes = 0;
  for (uint32_t at = list.oldest(); at != kNoRow; at = list.newer(rows_, at)) {
    if (chosen.size() >= count && bytes >= bytes_wanted) break;
    const Row& row = rows_[at];
    if (row.holds == 0 && row.stamp != stays) {
      chosen.push_back(at);
      bytes += row.bytes();
    } else if (row.parent != kNoRow) {
      rows_[row.parent].stamp = stays;
    }
  }
  return chosen;
}

std::vector<uint32_t> Index::descendants(std::span<const uint32_t> rows) {
  require_visible(rows);
  struct Visit {
    uint32_t row;
    uint32_t next_child;
  };
  const uint32_t stamp = next_stamp();
  std::vector<uint32_t> order;
  std::vector<Visit> path;
  const auto enter = [&](uint32_t row) {
    if (rows_[row].stamp == stamp) return;
    rows_[row].stamp = stamp;
    path.push_back({row, rows_[row].first_child});
  };
  for (const uint32_t row : rows) {
    enter(row);
    while (!path.empty()) {
      const uint32_t child = path.back().next_child;
      if (child == kNoRow) {
        order.push_back(path.back().row);
        path.pop_back();
        continue;
      }
      path.back().next_child = rows_[child].next_sibling;
      enter(child);
    }
  }
  return order;
}

std::vector<uint32_t> Index::rows_in(uint64_t begin_ref, uint64_t end_ref) const {
  std::vector<uint32_t> found;
  for (uint32_t number = 0; number < rows_.end(); ++number) {
    if (!is_visible(number)) continue;
    const Row& row = rows_[number];
    for (uint32_t i = 0; i < row.part_count; ++i) {
      const uint64_t ref = row.part(i).ref;
      if (ref < begin_ref || ref >= end_ref) continue;
      found.push_back(number);
      break;
    }
  }
  return found;
}

std::vector<uint32_t> Index::rows_of(uint32_t namespace_number) const {
  const Namespace& space = namespace_at(namespace_number);
  std::vector<uint32_t> found;
  found.reserve(space.blocks);
  for (uint32_t at = space.recency.oldest(); at != kNoRow; at = space.recency.newer(rows_, at)) {
    found.push_back(at);
  }
  return found;
}

uint32_t Index::oldest() const {
  uint32_t at = recency_.oldest();
  while (at != kNoRow && rows_[at].holds > 0) at = recency_.newer(rows_, at);
  return at;
}

std::vector<NamespaceUsage> Index::usage() const {
  std::vector<NamespaceUsage> usage;
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    const Namespace& space = namespaces_[i];
    if (!space.live) continue;
    usage.push_back({static_cast<uint32_t>(i), space.blocks, space.bytes, space.leaving_bytes});
  }
  return usage;
}

void Index::publish(uint32_t number) {
  Row& row = rows_[number];
  const size_t room = table_->buckets() * kSlotsPerBucket;
  const size_t entries = table_->entries() + 1;
  if (entries * 10 > room * 7) grow_table();
  row.published = table_->insert(row.tag, row.tier);
  // Below a quarter full only tags chosen to collide find no place; growing would not end that.
  if (!row.published && entries * 4 > room) {
    grow_table();
    row.published = row.published || table_->insert(row.tag, row.tier);
  }
  if (row.published) return;
  ++unpublished_;
  waiting_.push_back({number, row.generation});
}

void Index::unpublish(uint32_t number) {
  Row& row = rows_[number];
  if (!row.published) {
    --unpublished_;
    return;
  }
  [[maybe_unused]] const bool erased = table_->erase(row.tag, row.tier);
  assert(erased);
  row.published = false;
}

void Index::grow_table() {
  if (table_->buckets() >= max_buckets_ || table_->entries() < grow_above_entries_) return;
  std::unique_ptr<TableWriter> next;
  try {
    next = std::make_unique<TableWriter>(2 * table_->buckets(), table_->epoch() + 1);
  } catch (const std::system_error&) {
    // No memory: look-ups miss what finds no bucket, `unpublished` counts it; not tried each time.
    grow_above_entries_ = table_->entries() + table_->entries() / 8 + 1;
    return;
  }
  for (uint32_t number = 0; number < rows_.end(); ++number) {
    Row& row = rows_[number];
    if (row.state != RowState::kVisible || !row.published) continue;
    row.published = next->insert(row.tag, row.tier);
    if (row.published) continue;
    ++unpublished_;
    waiting_.push_back({number, row.generation});
  }
  table_->supersede();
  table_ = std::move(next);
  retry_waiting(waiting_.size());
}

void Index::retry_waiting(size_t count) {
  for (; count > 0 && !waiting_.empty(); --count) {
    next_waiting_ = next_waiting_ + 1 < waiting_.size() ? next_waiting_ + 1 : 0;
    Waiting& entry = waiting_[next_waiting_];
    Row& row = rows_[entry.row];
    const bool waits =
        row.state == RowState::kVisible && row.generation == entry.generation && !row.published;
    if (waits && !table_->insert(row.tag, row.tier)) continue;
    if (waits) {
      row.published = true;
      --unpublished_;
    }
    entry = waiting_.back();
    waiting_.pop_back();
  }
}

}  // namespace evoke
