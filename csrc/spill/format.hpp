// What a flash directory holds, byte by byte: headers of slots, the header and the records of the
// index journal. docs/formats.md says the same for readers of files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace evoke {

constexpr uint32_t kSpillVersion = 1;
constexpr size_t kPageBytes = 4096;  // unit of direct I/O; bytes of a slot's and the index's header
constexpr size_t kRecordBytes = 128;
constexpr size_t kMaxParts = 256;
constexpr size_t kStateBytes = 24;  // what the policy learned about a block

using Key = std::array<uint8_t, 32>;
using State = std::array<uint8_t, kStateBytes>;

constexpr uint64_t pages_up(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

struct PartInfo {
  uint64_t sum;
  uint32_t length_bytes;
};

// What the header of a slot says.
struct SlotHeader {
  Key key{};
  Key namespace_id{};
  uint64_t generation = 0;
  uint32_t chain_index = 0;
  State state{};
  std::vector<PartInfo> parts;
};

// One number for the whole payload: a single part's own sum, else that of all sums.
uint64_t payload_sum(std::span<const PartInfo> parts);
// Bytes of a payload in its slot: each part begins on a page.
uint64_t payload_bytes(std::span<const PartInfo> parts);

void encode_slot_header(const SlotHeader& header, uint8_t* page);
// False unless the page is a whole header of this version.
bool decode_slot_header(const uint8_t* page, SlotHeader* header);

struct IndexHeader {
  uint64_t epoch = 0;  // rises at each opening; generations of one epoch begin at epoch << 40
  uint64_t segment_bytes = 0;
};

enum class IndexFault { kNone, kDamaged, kNewer };

void encode_index_header(const IndexHeader& header, uint8_t* page);
// *version is what the header says, where it is whole.
IndexFault decode_index_header(const uint8_t* page, IndexHeader* header, uint32_t* version);

enum class RecordKind : uint8_t { kNamespace = 1, kSegment = 2, kPlace = 3, kFree = 4 };

// A record of the journal. Which fields count depends on the kind.
struct Record {
  RecordKind kind = RecordKind::kFree;
  uint16_t parts = 0;                // place
  uint32_t namespace_number = 0;     // namespace, place
  uint32_t segment = 0;              // segment, place, free
  uint32_t index = 0;                // place, free: slot in the segment
  uint64_t generation = 0;           // segment, place, free
  uint64_t sum = 0;                  // place: payload_sum; segment: bytes of a slot
  uint32_t length_bytes = 0;         // place: a single part's own bytes, else payload_bytes
  uint32_t chain_index = 0;          // place
  Key key{};                         // place; namespace: its id
  std::array<uint8_t, 16> parent{};  // place: the first half of the parent's key, or zeros
  State state{};                     // place
};

void encode_record(const Record& record, uint8_t* bytes);
bool decode_record(const uint8_t* bytes, Record* record);

}  // namespace evoke
