#include "format.hpp"

#include <bit>
#include <cassert>
#include <cstring>

#include "../kernels.hpp"

namespace evoke {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr char kSlotMagic[8] = {'E', 'V', 'K', 'S', 'L', 'O', 'T', 0};
constexpr char kIndexMagic[8] = {'E', 'V', 'K', 'I', 'N', 'D', 'E', 'X'};
constexpr size_t kPartsAt = 128;
constexpr size_t kSlotSumAt = kPageBytes - 8;
constexpr size_t kIndexSumAt = 56;
constexpr size_t kRecordSumAt = kRecordBytes - 8;
static_assert(kPartsAt + kMaxParts * 12 <= kSlotSumAt);

template <typename T>
void put(uint8_t* bytes, size_t at, const T& value) {
  std::memcpy(bytes + at, &value, sizeof value);
}

template <typename T>
T get(const uint8_t* bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes + at, sizeof value);
  return value;
}

template <size_t n>
void get_bytes(const uint8_t* bytes, size_t at, std::array<uint8_t, n>* value) {
  std::memcpy(value->data(), bytes + at, n);
}

}  // namespace

uint64_t payload_sum(std::span<const PartInfo> parts) {
  if (parts.size() == 1) return parts[0].sum;
  std::vector<uint64_t> sums;
  for (const PartInfo& part : parts) sums.push_back(part.sum);
  return xxh3_64(reinterpret_cast<const uint8_t*>(sums.data()), sums.size() * sizeof(uint64_t));
}

uint64_t payload_bytes(std::span<const PartInfo> parts) {
  uint64_t bytes = 0;
  for (const PartInfo& part : parts) bytes += pages_up(part.length_bytes);
  return bytes;
}

void encode_slot_header(const SlotHeader& header, uint8_t* page) {
  const size_t parts = header.parts.size();
  assert(parts >= 1 && parts <= kMaxParts);
  std::memset(page, 0, kPageBytes);
  put(page, 0, kSlotMagic);
  put(page, 8, kSpillVersion);
  put(page, 12, static_cast<uint32_t>(parts));
  put(page, 16, header.generation);
  put(page, 24, header.chain_index);
  put(page, 32, header.key);
  put(page, 64, header.namespace_id);
  put(page, 96, header.state);
  put(page, 120, payload_sum(header.parts));
  for (size_t i = 0; i < parts; i++) {
    put(page, kPartsAt + 8 * i, header.parts[i].sum);
    put(page, kPartsAt + 8 * parts + 4 * i, header.parts[i].length_bytes);
  }
  put(page, kSlotSumAt, xxh3_64(page, kSlotSumAt));
}

bool decode_slot_header(const uint8_t* page, SlotHeader* header) {
  if (std::memcmp(page, kSlotMagic, sizeof kSlotMagic) != 0) return false;
  if (get<uint32_t>(page, 8) != kSpillVersion) return false;
  if (get<uint64_t>(page, kSlotSumAt) != xxh3_64(page, kSlotSumAt)) return false;
  const auto parts = get<uint32_t>(page, 12);
  if (parts < 1 || parts > kMaxParts) return false;
  header->generation = get<uint64_t>(page, 16);
  header->chain_index = get<uint32_t>(page, 24);
  get_bytes(page, 32, &header->key);
  get_bytes(page, 64, &header->namespace_id);
  get_bytes(page, 96, &header->state);
  header->parts.clear();
  for (size_t i = 0; i < parts; i++) {
    header->parts.push_back(
        {get<uint64_t>(page, kPartsAt + 8 * i), get<uint32_t>(page, kPartsAt + 8 * parts + 4 * i)});
  }
  return get<uint64_t>(page, 120) == payload_sum(header->parts);
}

void encode_index_header(const IndexHeader& header, uint8_t* page) {
  std::memset(page, 0, kPageBytes);
  put(page, 0, kIndexMagic);
  put(page, 8, kSpillVersion);
  put(page, 12, static_cast<uint32_t>(kPageBytes));
  put(page, 16, header.epoch);
  put(page, 24, header.segment_bytes);
  put(page, kIndexSumAt, xxh3_64(page, kIndexSumAt));
}

IndexFault decode_index_header(const uint8_t* page, IndexHeader* header, uint32_t* version) {
  if (std::memcmp(page, kIndexMagic, sizeof kIndexMagic) != 0) return IndexFault::kDamaged;
  if (get<uint64_t>(page, kIndexSumAt) != xxh3_64(page, kIndexSumAt)) return IndexFault::kDamaged;
  *version = get<uint32_t>(page, 8);
  if (*version > kSpillVersion) return IndexFault::kNewer;
  header->epoch = get<uint64_t>(page, 16);
  header->segment_bytes = get<uint64_t>(page, 24);
  const bool whole = *version == kSpillVersion && get<uint32_t>(page, 12) == kPageBytes &&
                     header->segment_bytes > 0 && header->segment_bytes % kPageBytes == 0;
  return whole ? IndexFault::kNone : IndexFault::kDamaged;
}

void encode_record(const Record& record, uint8_t* bytes) {
  std::memset(bytes, 0, kRecordBytes);
  put(bytes, 0, record.kind);
  put(bytes, 2, record.parts);
  put(bytes, 4, record.namespace_number);
  put(bytes, 8, record.segment);
  put(bytes, 12, record.index);
  put(bytes, 16, record.generation);
  put(bytes, 24, record.sum);
  put(bytes, 32, record.length_bytes);
  put(bytes, 36, record.chain_index);
  put(bytes, 40, record.key);
  put(bytes, 72, record.parent);
  put(bytes, 88, record.state);
  put(bytes, kRecordSumAt, xxh3_64(bytes, kRecordSumAt));
}

bool decode_record(const uint8_t* bytes, Record* record) {
  const auto kind = get<uint8_t>(bytes, 0);
  if (kind < 1 || kind > static_cast<uint8_t>(RecordKind::kFree)) return false;
  if (get<uint64_t>(bytes, kRecordSumAt) != xxh3_64(bytes, kRecordSumAt)) return false;
  record->kind = static_cast<RecordKind>(kind);
  record->parts = get<uint16_t>(bytes, 2);
  record->namespace_number = get<uint32_t>(bytes, 4);
  record->segment = get<uint32_t>(bytes, 8);
  record->index = get<uint32_t>(bytes, 12);
  record->generation = get<uint64_t>(bytes, 16);
  record->sum = get<uint64_t>(bytes, 24);
  record->length_bytes = get<uint32_t>(bytes, 32);
  record->chain_index = get<uint32_t>(bytes, 36);
  get_bytes(bytes, 40, &record->key);
  get_bytes(bytes, 72, &record->parent);
  get_bytes(bytes, 88, &record->state);
  return true;
}

}  // namespace evoke
