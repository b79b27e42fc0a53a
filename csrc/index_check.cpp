// Of Index: the proof that it is as it says.
#include <stdexcept>
#include <string>
#include <vector>

#include "index.hpp"

namespace evoke {
namespace {

void require(bool holds, const char* what, uint64_t number) {
  if (!holds) throw std::logic_error("index: " + std::string(what) + " " + std::to_string(number));
}

}  // namespace

void Index::check() const {
  check_rows();
  check_recency();
  check_usage();
}

void Index::check_rows() const {
  size_t visible = 0;
  for (uint32_t number = 0; number < rows_.end(); ++number) {
    const Row& row = rows_[number];
    if (row.state == RowState::kErased) require(row.holds > 0, "erased, not held: row", number);
    if (row.state != RowState::kVisible) continue;
    ++visible;
    check_row(number);
    check_children(number);
  }
  require(visible == map_.size(), "visible rows differ from the map's:", visible);
  publisher_.check();
}

void Index::check_row(uint32_t number) const {
  const Row& row = rows_[number];
  const Namespace& space = namespace_at(row.namespace_number);
  require(row.tag == tag_of(space.secret, row.key.data()), "wrong tag of row", number);
  require(row.part_count == space.parts, "wrong number of parts of row", number);
  require(find_one(row.namespace_number, row.key.data(), row.tag) == number, "can't find row",
          number);
  require(row.staying == row.must_stay(), "held, or not: row", number);
  if (row.parent == kNoRow) {
    require(row.next_sibling == kNoRow && row.previous_sibling == kNoRow,
            "siblings without a parent: row", number);
    return;
  }
  require(is_visible(row.parent), "dead parent of row", number);
  const Row& above = rows_[row.parent];
  require(above.namespace_number == row.namespace_number, "parent in another namespace: row",
          number);
  // Indexes that fall by one on the way up leave no room for a cycle.
  require(above.chain_index + uint64_t{1} == row.chain_index, "chain index of row", number);
}

void Index::check_children(uint32_t number) const {
  uint32_t staying = 0;
  uint32_t before = kNoRow;
  for (uint32_t child = rows_[number].first_child; child != kNoRow;) {
    require(is_visible(child) && rows_[child].parent == number, "not its child: row", child);
    require(rows_[child].previous_sibling == before, "sibling links of row", child);
    staying += rows_[child].staying ? 1 : 0;
    before = child;
    child = rows_[child].next_sibling;
  }
  require(staying == rows_[number].staying_children, "held children of row", number);
}

void Index::check_recency() const {
  // Once with the list of all, once with the namespaces' lists: each row once, children first.
  size_t staying = 0;
  for (uint32_t number = 0; number < rows_.end(); ++number) {
    staying += is_visible(number) && rows_[number].staying ? 1 : 0;
  }
  for (const int which : {kOfAll, kOfNamespace}) {
    std::vector<bool> met(rows_.end(), false);
    size_t count = 0;
    const auto walk = [&](const RecencyList& list, uint64_t space, bool stays) {
      uint32_t before = kNoRow;
      for (uint32_t at = list.oldest(); at != kNoRow; at = list.newer(rows_, at)) {
        require(is_visible(at) && !met[at], "dead or twice in a recency list: row", at);
        require(rows_[at].links[which].older == before, "recency links of row", at);
        require(which == kOfAll || rows_[at].namespace_number == space, "foreign row", at);
        const uint32_t parent = rows_[at].parent;
        require(stays || parent == kNoRow || !met[parent], "more recent than its parent: row", at);
        require(rows_[at].staying == stays, "on the wrong list: row", at);
        met[at] = true;
        before = at;
        ++count;
      }
      require(list.newest() == before, "newest of a recency list:", list.newest());
    };
    if (which == kOfAll) walk(recency_, 0, false);
    for (size_t i = 0; which == kOfNamespace && i < namespaces_.size(); ++i) {
      walk(namespaces_[i].recency, i, false);
      walk(namespaces_[i].staying, i, true);
    }
    require(count + (which == kOfAll ? staying : 0) == map_.size(), "rows in the lists:", count);
  }
}

void Index::check_usage() const {
  std::vector<uint64_t> blocks(namespaces_.size(), 0);
  std::vector<uint64_t> bytes(namespaces_.size(), 0);
  std::vector<uint64_t> gaps(namespaces_.size(), 0);
  std::vector<uint64_t> leaving_bytes(namespaces_.size(), 0);
  for (uint32_t number = 0; number < rows_.end(); ++number) {
    if (rows_.is(number, RowState::kErased)) {
      leaving_bytes[rows_[number].namespace_number] += rows_[number].bytes();
    }
    if (!is_visible(number)) continue;
    ++blocks[rows_[number].namespace_number];
    const bool is_gap = rows_[number].chain_index > 0 && rows_[number].parent == kNoRow;
    gaps[rows_[number].namespace_number] += is_gap ? 1 : 0;
    bytes[rows_[number].namespace_number] += rows_[number].bytes();
  }
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    require(namespaces_[i].blocks == blocks[i], "blocks counted for namespace", i);
    require(namespaces_[i].bytes == bytes[i], "bytes counted for namespace", i);
    require(namespaces_[i].blocks - namespaces_[i].linked - namespaces_[i].roots == gaps[i],
            "gaps counted for namespace", i);
    require(namespaces_[i].leaving_bytes == leaving_bytes[i], "leaving bytes of namespace", i);
  }
}

}  // namespace evoke
