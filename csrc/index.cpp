#include "index.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace evoke {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kMaxParts = 4096;

std::string text(uint64_t number) { return std::to_string(number); }

void require_count(const char* argument, size_t is, size_t expected) {
  if (is == expected) return;
  throw std::invalid_argument(std::string(argument) + ": " + text(is) + " values, expected " +
                              text(expected));
}

void require_whole_keys(std::span<const uint8_t> keys) {
  if (keys.size() % kKeyBytes == 0) return;
  throw std::invalid_argument("keys: " + text(keys.size()) + " bytes, not a multiple of 32");
}

void require_tier(uint32_t tier) {
  if (tier >= 1 && tier <= 3) return;
  throw std::invalid_argument("tier: " + text(tier) + " is not 1, 2 or 3");
}

}  // namespace

Index::Index(size_t buckets, size_t max_buckets) : publisher_(&rows_, buckets, max_buckets) {}

std::pair<uint32_t, TagSecret> Index::add_namespace(uint32_t parts) {
  if (parts < 1 || parts > kMaxParts) {
    throw std::invalid_argument("parts: " + text(parts) + " is not in 1.." + text(kMaxParts));
  }
  Namespace space;
  space.parts = parts;
  fill_random(&space.secret, sizeof space.secret);
  if (unused_namespaces_.empty()) {
    namespaces_.push_back(space);
    return {static_cast<uint32_t>(namespaces_.size() - 1), space.secret};
  }
  const uint32_t number = unused_namespaces_.back();
  unused_namespaces_.pop_back();
  namespaces_[number] = space;
  return {number, space.secret};
}

std::vector<uint64_t> Index::drop_namespace(uint32_t number) {
  const std::vector<uint32_t> rows = rows_of(number);
  std::vector<uint64_t> freed = erase(rows);
  Namespace& space = namespaces_[number];
  space.live = false;
  if (space.leaving_blocks == 0) unused_namespaces_.push_back(number);
  return freed;
}

const Index::Namespace& Index::namespace_at(uint64_t number) const {
  if (number >= namespaces_.size() || !namespaces_[number].live) {
    throw std::invalid_argument("namespace: there is no " + text(number));
  }
  return namespaces_[number];
}

void Index::require_visible(std::span<const uint32_t> rows) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_visible(rows[i])) continue;
    throw std::out_of_range("rows[" + text(i) + "]: row " + text(rows[i]) + " is not visible");
  }
}

const Row& Index::live_row(uint32_t row) const {
  if (row >= rows_.end() || rows_[row].state == RowState::kDead) {
    throw std::out_of_range("row " + text(row) + " is dead");
  }
  return rows_[row];
}

uint32_t Index::find_one(uint32_t namespace_number, const uint8_t* key, const Tag& tag) const {
  return map_.find(map_.hash(tag), [&](uint32_t number) {
    const Row& row = rows_[number];
    return row.namespace_number == namespace_number &&
           std::memcmp(row.key.data(), key, kKeyBytes) == 0;
  });
}

std::vector<uint32_t> Index::find(uint32_t namespace_number, std::span<const uint8_t> keys) const {
  const Namespace& space = namespace_at(namespace_number);
  require_whole_keys(keys);
  const size_t count = keys.size() / kKeyBytes;
  std::vector<Tag> tags(count);
  tags_of(space.secret, keys.data(), count, tags.data());
  for (const Tag& tag : tags) map_.prefetch(map_.hash(tag));
  std::vector<uint32_t> found(count);
  for (size_t i = 0; i < count; ++i) {
    found[i] = find_one(namespace_number, keys.data() + kKeyBytes * i, tags[i]);
  }
  return found;
}

void Index::check_new(const Namespace& space, const NewBlocks& blocks) const {
  require_whole_keys(blocks.keys);
  const size_t count = blocks.keys.size() / kKeyBytes;
  if (!blocks.parent.empty() && blocks.parent.size() != kKeyBytes) {
    throw std::invalid_argument("parent: " + text(blocks.parent.size()) +
                                " bytes, expected 32 or none");
  }
  require_tier(blocks.tier);
  require_count("refs", blocks.refs.size(), count * space.parts);
  require_count("lengths", blocks.lengths_bytes.size(), count * space.parts);
  require_count("sums", blocks.sums.size(), count * space.parts);
  constexpr size_t kMost = std::numeric_limits<uint32_t>::max();
  if (count > kMost || blocks.first_index > kMost - count) {
    throw std::invalid_argument("first_index: " + text(blocks.first_index) + " and " + text(count) +
                                " blocks leave the range of u32");
  }
}

std::vector<uint32_t> Index::insert(uint32_t namespace_number, const NewBlocks& blocks) {
  const Namespace& space = namespace_at(namespace_number);
  check_new(space, blocks);
  const size_t count = blocks.keys.size() / kKeyBytes;
  std::vector<Tag> tags(count);
  tags_of(space.secret, blocks.keys.data(), count, tags.data());
  uint32_t before = kNoRow;
  if (!blocks.parent.empty()) {
    const uint8_t* key = blocks.parent.data();
    before = find_one(namespace_number, key, tag_of(space.secret, key));
  }

  std::vector<uint32_t> inserted(count, kNoRow);
  std::vector<uint32_t> fresh;  // what has to become most recent, from the root down
  std::vector<Part> parts(space.parts);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* key = blocks.keys.data() + kKeyBytes * i;
    uint32_t row = find_one(namespace_number, key, tags[i]);
    if (row == kNoRow) {
      for (size_t p = 0; p < parts.size(); ++p) {
        const size_t at = i * parts.size() + p;
        parts[p] = {blocks.refs[at], blocks.sums[at], blocks.lengths_bytes[at]};
      }
      row = add_row(namespace_number, key, tags[i], parts,
                    static_cast<uint32_t>(blocks.first_index + i), blocks.tier);
      inserted[i] = row;
    }
    if (link_one(row, before)) fresh.push_back(before);
    if (inserted[i] != kNoRow) fresh.push_back(row);
    before = row;
  }
  touch(fresh);
  return inserted;
}

uint32_t Index::add_row(uint32_t namespace_number, const uint8_t* key, const Tag& tag,
                        const std::vector<Part>& parts, uint32_t chain_index, uint32_t tier) {
  const uint32_t number = rows_.make();
  Row& row = rows_[number];
  std::memcpy(row.key.data(), key, kKeyBytes);
  row.tag = tag;
  rows_.set_parts(row, parts.data(), static_cast<uint16_t>(parts.size()));
  row.namespace_number = namespace_number;
  row.chain_index = chain_index;
  row.tier = tier & 3;
  row.state = RowState::kVisible;
  map_.insert(map_.hash(tag), number);
  Namespace& space = namespaces_[namespace_number];
  recency_.add_newest(rows_, number);
  space.recency.add_newest(rows_, number);
  ++space.blocks;
  space.roots += chain_index == 0 ? 1 : 0;
  space.bytes += row.bytes();
  publisher_.publish(number);
  note(ChangeKind::kStored, number, namespace_number);
  return number;
}

bool Index::link_one(uint32_t child, uint32_t parent) {
  if (child == kNoRow || parent == kNoRow) return false;
  Row& below = rows_[child];
  Row& above = rows_[parent];
  if (below.parent != kNoRow || below.chain_index != uint64_t{above.chain_index} + 1) return false;
  below.parent = parent;
  ++namespaces_[below.namespace_number].linked;
  below.previous_sibling = kNoRow;
  below.next_sibling = above.first_child;
  if (above.first_child != kNoRow) rows_[above.first_child].previous_sibling = child;
  above.first_child = child;
  note(ChangeKind::kLinked, child, parent);
  if (below.staying) {
    ++above.staying_children;
    settle(parent);
  }
  return true;
}

void Index::link(uint32_t namespace_number, std::span<const uint8_t> keys) {
  const std::vector<uint32_t> rows = find(namespace_number, keys);
  std::vector<uint32_t> parents;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (link_one(rows[i], rows[i - 1])) parents.push_back(rows[i - 1]);
  }
  touch(parents);
}

void Index::unlink(uint32_t number) {
  Row& row = rows_[number];
  uint64_t& linked = namespaces_[row.namespace_number].linked;
  for (uint32_t child = row.first_child; child != kNoRow;) {
    Row& below = rows_[child];
    note(ChangeKind::kUnlinked, child);
    child = below.next_sibling;
    --linked;
    below.parent = below.next_sibling = below.previous_sibling = kNoRow;
  }
  row.first_child = kNoRow;
  row.staying_children = 0;
  if (row.parent == kNoRow) return;
  --linked;
  Row& above = rows_[row.parent];
  (row.previous_sibling == kNoRow ? above.first_child : rows_[row.previous_sibling].next_sibling) =
      row.next_sibling;
  if (row.next_sibling != kNoRow) rows_[row.next_sibling].previous_sibling = row.previous_sibling;
  const uint32_t parent = row.parent;
  row.parent = row.next_sibling = row.previous_sibling = kNoRow;
  if (row.staying) {
    --above.staying_children;
    settle(parent);
  }
}

void Index::free_row(uint32_t number, std::vector<uint64_t>* freed) {
  const Row& row = rows_[number];
  for (uint32_t i = 0; i < row.part_count; ++i) freed->push_back(row.part(i).ref);
  Namespace& space = namespaces_[row.namespace_number];
  --space.leaving_blocks;
  space.leaving_bytes -= row.bytes();
  if (!space.live && space.leaving_blocks == 0) unused_namespaces_.push_back(row.namespace_number);
  rows_.release(number);
}

void Index::remove_one(uint32_t number, std::vector<uint64_t>* freed) {
  Row& row = rows_[number];
  Namespace& space = namespaces_[row.namespace_number];
  publisher_.unpublish(number);
  unlink(number);
  note(ChangeKind::kErased, number);
  if (!row.staying) recency_.remove(rows_, number);
  (row.staying ? space.staying : space.recency).remove(rows_, number);
  map_.erase(map_.hash(row.tag), number);
  --space.blocks;
  space.roots -= row.chain_index == 0 ? 1 : 0;
  space.bytes -= row.bytes();
  ++space.leaving_blocks;
  space.leaving_bytes += row.bytes();
  row.state = RowState::kErased;
  if (row.holds == 0) free_row(number, freed);
  publisher_.retry_waiting();
}

std::vector<uint64_t> Index::erase(std::span<const uint32_t> rows) {
  require_visible(rows);
  std::vector<uint64_t> freed;
  freed.reserve(rows.size());
  for (const uint32_t row : rows) {
    if (is_visible(row)) remove_one(row, &freed);  // else: named twice
  }
  return freed;
}

std::vector<uint64_t> Index::relocate(std::span<const uint32_t> rows,
                                      std::span<const uint64_t> refs, uint32_t tier) {
  require_visible(rows);
  require_tier(tier);
  const uint32_t stamp = next_stamp();
  size_t parts = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows_[rows[i]];
    if (row.holds > 0 || row.stamp == stamp) {
      throw std::invalid_argument("rows[" + text(i) + "]: row " + text(rows[i]) +
                                  " is held or named twice");
    }
    row.stamp = stamp;
    parts += row.part_count;
  }
  require_count("refs", refs.size(), parts);
  std::vector<uint64_t> had;
  had.reserve(parts);
  for (const uint32_t number : rows) {
    Row& row = rows_[number];
    for (uint32_t i = 0; i < row.part_count; ++i) {
      uint64_t& ref = row.part_count == 1 ? row.ref : row.parts[i].ref;
      had.push_back(std::exchange(ref, refs[had.size()]));
    }
    if (row.tier == tier) continue;
    publisher_.unpublish(number);
    row.tier = tier & 3;
    publisher_.publish(number);
    note(ChangeKind::kMoved, number);
  }
  return had;
}

void Index::hold(std::span<const uint32_t> rows) {
  require_visible(rows);
  for (const uint32_t row : rows) {
    if (++rows_[row].holds == 1) note(ChangeKind::kHeld, row);
    settle(row);
  }
}

std::vector<uint64_t> Index::unhold(std::span<const uint32_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool live = rows[i] < rows_.end() && rows_[rows[i]].state != RowState::kDead;
    if (live && rows_[rows[i]].holds > 0) {
      --rows_[rows[i]].holds;
      continue;
    }
    for (size_t undo = 0; undo < i; ++undo) ++rows_[rows[undo]].holds;
    throw std::out_of_range("rows[" + text(i) + "]: row " + text(rows[i]) +
                            " is not held (that often)");
  }
  std::vector<uint64_t> freed;
  for (const uint32_t row : rows) {
    if (is_visible(row)) settle(row);
    if (rows_[row].holds > 0) continue;
    if (rows_[row].state == RowState::kErased) free_row(row, &freed);
    if (rows_[row].state == RowState::kVisible) note(ChangeKind::kLoose, row);
  }
  return freed;
}

}  // namespace evoke
