// Which blocks are where: key -> parts, holds, chain links, recency; publishes the look-up table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "changes.hpp"
#include "publisher.hpp"
#include "rows.hpp"

namespace evoke {

struct NamespaceUsage {
  uint32_t number;
  uint64_t blocks, bytes;
  uint64_t gaps;           // blocks that have, as far as is known, no stored parent
  uint64_t leaving_bytes;  // of erased blocks that are held: their memory is not given back yet
};

// The blocks of one insert: consecutive ones of a chain. refs, lengths and sums have one value per
// part, block after block.
struct NewBlocks {
  std::span<const uint8_t> keys;    // packed, 32 bytes each
  std::span<const uint8_t> parent;  // of the first: 32 bytes or empty
  uint64_t first_index = 0;         // chain index of the first
  std::span<const uint64_t> refs;
  std::span<const uint32_t> lengths_bytes;
  std::span<const uint64_t> sums;
  uint32_t tier = 0;
};

// Owned by one thread. A row is visible from insert to erase. A held row that is erased disappears
// at once and its memory is given back at the last unhold. A parent is always more recent than its
// children. A held row has no recency, nor have its ancestors: when nothing holds them any more
// they are the most recent. Bad arguments: std::invalid_argument; a row that is not visible:
// std::out_of_range; nothing has changed then.
class Index {
 public:
  // buckets: of the first published table; it doubles by itself up to max_buckets.
  Index(size_t buckets, size_t max_buckets);

  std::pair<uint32_t, TagSecret> add_namespace(uint32_t parts);
  std::vector<uint64_t> drop_namespace(uint32_t number);

  std::vector<uint32_t> find(uint32_t namespace_number, std::span<const uint8_t> keys) const;
  // Per block its row, or kNoRow where the key was present.
  std::vector<uint32_t> insert(uint32_t namespace_number, const NewBlocks& blocks);
  // Consecutive keys of one chain: sets missing parent links. A link needs the chain index of the
  // child to be one more than the parent's, so that whatever a client claims, links have no cycle.
  void link(uint32_t namespace_number, std::span<const uint8_t> keys);
  std::vector<uint64_t> erase(std::span<const uint32_t> rows);
  // Another place for the parts of rows that nobody holds; the refs they had.
  std::vector<uint64_t> relocate(std::span<const uint32_t> rows, std::span<const uint64_t> refs,
                                 uint32_t tier);

  void hold(std::span<const uint32_t> rows);
  std::vector<uint64_t> unhold(std::span<const uint32_t> rows);
  // Holds that keep the rows' recency: for a few at a time, since victims() has to pass them over.
  // A row is lent once at most (std::invalid_argument).
  void lend(std::span<const uint32_t> rows);
  std::vector<uint64_t> take_back(std::span<const uint32_t> rows);

  // Afterwards the first row is the most recent but for its ancestors, and so on.
  void touch(std::span<const uint32_t> rows);
  std::vector<uint32_t> victims(size_t count, uint64_t bytes_wanted, int64_t namespace_number);
  std::vector<uint32_t> descendants(std::span<const uint32_t> rows);
  std::vector<uint32_t> rows_in(uint64_t begin_ref, uint64_t end_ref) const;
  // The least recent first, then those with something held at or below them; up to count.
  std::vector<uint32_t> rows_of(uint32_t namespace_number, size_t count = SIZE_MAX) const;
  uint32_t oldest() const { return recency_.oldest(); }

  bool is_visible(uint32_t row) const { return rows_.is(row, RowState::kVisible); }
  const Row& live_row(uint32_t row) const;  // visible, or erased and held

  std::vector<NamespaceUsage> usage() const;
  size_t size() const { return map_.size(); }
  size_t metadata_bytes() const;
  const Publisher& publisher() const { return publisher_; }

  // From now on changes of visible rows are noted, in order, until they are taken.
  void follow() { following_ = true; }
  size_t changes() const { return changes_.list.size(); }  // not taken yet
  Changes take_changes() { return std::exchange(changes_, {}); }

  // Walks everything; std::logic_error says what is wrong.
  void check() const;

 private:
  struct Namespace {
    TagSecret secret;
    uint32_t parts = 0;
    bool live = true;
    uint64_t blocks = 0;
    uint64_t bytes = 0;
    uint64_t linked = 0;          // blocks with a parent
    uint64_t roots = 0;           // blocks of chain index 0
    uint64_t leaving_blocks = 0;  // erased, but held
    uint64_t leaving_bytes = 0;
    RecencyList recency{kOfNamespace};
    RecencyList staying{kOfNamespace};  // in no order
  };

  const Namespace& namespace_at(uint64_t number) const;
  void note(ChangeKind kind, uint32_t row, uint32_t other = 0);
  void require_visible(std::span<const uint32_t> rows) const;
  uint32_t find_one(uint32_t namespace_number, const uint8_t* key, const Tag& tag) const;
  uint32_t add_row(uint32_t namespace_number, const uint8_t* key, const Tag& tag,
                   const std::vector<Part>& parts, uint32_t chain_index, uint32_t tier);
  void check_new(const Namespace& space, const NewBlocks& blocks) const;
  bool link_one(uint32_t child, uint32_t parent);
  void unlink(uint32_t row);
  void move_to_newest(uint32_t row);
  void settle(uint32_t row);  // on the list where it belongs, and then its ancestors
  void remove_one(uint32_t row, std::vector<uint64_t>* freed);
  void free_row(uint32_t row, std::vector<uint64_t>* freed);
  uint32_t next_stamp();

  void check_rows() const;
  void check_row(uint32_t row) const;
  void check_children(uint32_t row) const;
  void check_recency() const;
  void check_usage() const;

  RowStore rows_;
  RowMap map_;
  RecencyList recency_{kOfAll};
  std::vector<Namespace> namespaces_;
  std::vector<uint32_t> unused_namespaces_;  // dropped, and without rows: their numbers come back
  Publisher publisher_;
  uint32_t stamp_ = 0;
  bool following_ = false;
  Changes changes_;
};

}  // namespace evoke
