// What happened to rows of the index, for who mirrors them.
#pragma once

#include <cstdint>
#include <vector>

namespace evoke {

enum class ChangeKind : uint32_t {
  kStored,    // a new row; its key is the next of Changes::keys
  kErased,    // it has left, and so have its links: its children's too
  kLinked,    // other: its parent
  kUnlinked,  // its parent has been erased
  kMoved,     // tier: where it is now
  kHeld,      // somebody holds it
  kLoose,     // nobody does any more
};

struct Change {
  ChangeKind kind;
  uint32_t row;
  uint32_t other;  // kStored: the number of its namespace
  uint32_t tier;
  uint32_t bytes;  // all parts
};

struct Changes {
  std::vector<Change> list;
  std::vector<uint8_t> keys;  // 32 bytes each
};

}  // namespace evoke
