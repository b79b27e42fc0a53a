// Of Index: what depends on recency and chain links.
#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>

#include "index.hpp"

namespace evoke {

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
  if (rows_[row].staying) return;
  recency_.move_to_newest(rows_, row);
  namespaces_[rows_[row].namespace_number].recency.move_to_newest(rows_, row);
}

void Index::settle(uint32_t number) {
  while (number != kNoRow && rows_[number].staying != rows_[number].must_stay()) {
    Row& row = rows_[number];
    Namespace& space = namespaces_[row.namespace_number];
    row.staying = !row.staying;
    if (row.staying) {
      recency_.remove(rows_, number);
      space.recency.remove(rows_, number);
      space.staying.add_newest(rows_, number);
    } else {
      space.staying.remove(rows_, number);
      recency_.add_newest(rows_, number);
      space.recency.add_newest(rows_, number);
    }
    number = row.parent;
    if (number != kNoRow) rows_[number].staying_children += row.staying ? 1 : -1;
  }
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
  // What is held, and what is above it, is not on the list, but what is lent is. Children are less
  // recent than their parent, so the walk meets them first: a row that stays marks its parent.
  const uint32_t stays = next_stamp();
  std::vector<uint32_t> chosen;
  uint64_t bytes = 0;
  for (uint32_t at = list.oldest(); at != kNoRow; at = list.newer(rows_, at)) {
    if (chosen.size() >= count && bytes >= bytes_wanted) break;
    const Row& row = rows_[at];
    if (row.lent == 0 && row.stamp != stays) {
      chosen.push_back(at);
      bytes += row.bytes();
    } else if (row.parent != kNoRow) {
      rows_[row.parent].stamp = stays;
    }
  }
  return chosen;
}

void Index::lend(std::span<const uint32_t> rows) {
  require_visible(rows);
  const uint32_t stamp = next_stamp();
  for (const uint32_t row : rows) {
    if (rows_[row].lent != 0 || rows_[row].stamp == stamp) {
      throw std::invalid_argument("rows: row " + std::to_string(row) + " is lent already");
    }
    rows_[row].stamp = stamp;
  }
  for (const uint32_t row : rows) {
    rows_[row].lent = 1;
    if (++rows_[row].holds == 1) note(ChangeKind::kHeld, row);
  }
}

std::vector<uint64_t> Index::take_back(std::span<const uint32_t> rows) {
  for (const uint32_t row : rows) {
    if (live_row(row).lent == 0) {
      throw std::invalid_argument("rows: row " + std::to_string(row) + " is not lent");
    }
  }
  std::vector<uint64_t> freed;
  for (const uint32_t row : rows) {
    if (rows_[row].lent == 0) continue;  // named twice
    rows_[row].lent = 0;
    if (--rows_[row].holds > 0) continue;
    if (rows_[row].state == RowState::kErased) free_row(row, &freed);
    if (rows_[row].state == RowState::kVisible) note(ChangeKind::kLoose, row);
  }
  return freed;
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

std::vector<uint32_t> Index::rows_of(uint32_t namespace_number, size_t count) const {
  const Namespace& space = namespace_at(namespace_number);
  std::vector<uint32_t> found;
  found.reserve(std::min<size_t>(space.blocks, count));
  for (const RecencyList& list : {space.recency, space.staying}) {
    for (uint32_t at = list.oldest(); at != kNoRow && found.size() < count;
         at = list.newer(rows_, at)) {
      found.push_back(at);
    }
  }
  return found;
}

std::vector<NamespaceUsage> Index::usage() const {
  std::vector<NamespaceUsage> usage;
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    const Namespace& space = namespaces_[i];
    if (!space.live) continue;
    usage.push_back({static_cast<uint32_t>(i), space.blocks, space.bytes,
                     space.blocks - space.linked - space.roots, space.leaving_bytes});
  }
  return usage;
}

size_t Index::metadata_bytes() const {
  return rows_.size_bytes() + map_.size_bytes() + publisher_.size_bytes() +
         namespaces_.capacity() * sizeof(Namespace);
}

}  // namespace evoke
