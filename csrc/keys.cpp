#include "keys.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace evoke {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie");

constexpr std::string_view kLabel = "evoke-block-1";
constexpr size_t kU32Max = std::numeric_limits<uint32_t>::max();

void require_key_bytes(const char* argument, std::string_view value) {
  if (value.size() == kKeyBytes) return;
  throw std::invalid_argument(std::string(argument) + ": " + std::to_string(value.size()) +
                              " bytes, expected 32");
}

void check_extras(std::vector<Extra>& extras, size_t full_blocks) {
  std::sort(extras.begin(), extras.end(),
            [](const Extra& a, const Extra& b) { return a.block < b.block; });
  for (size_t i = 0; i < extras.size(); ++i) {
    const std::string name = "extras: block " + std::to_string(extras[i].block);
    if (extras[i].block >= full_blocks) {
      throw std::invalid_argument(name + " is not one of the " + std::to_string(full_blocks) +
                                  " full blocks");
    }
    if (i > 0 && extras[i].block == extras[i - 1].block) {
      throw std::invalid_argument(name + " is named twice");
    }
    if (extras[i].bytes.size() > kU32Max) {
      throw std::invalid_argument(name + " has " + std::to_string(extras[i].bytes.size()) +
                                  " bytes, more than a u32 can say");
    }
  }
}

void put_u32(uint8_t* at, size_t value) {
  const auto word = static_cast<uint32_t>(value);
  std::memcpy(at, &word, sizeof word);
}

}  // namespace

std::vector<uint8_t> chain_keys(std::string_view namespace_id, std::span<const uint32_t> token_ids,
                                size_t block_tokens, std::string_view parent,
                                std::vector<Extra> extras, Sha256Compress compress) {
  require_key_bytes("namespace_id", namespace_id);
  require_key_bytes("parent", parent);
  if (block_tokens == 0 || block_tokens > kU32Max) {
    throw std::invalid_argument("block_tokens: " + std::to_string(block_tokens) +
                                " is not in 1..2^32-1");
  }
  const size_t blocks = token_ids.size() / block_tokens;
  check_extras(extras, blocks);
  std::vector<uint8_t> keys(blocks * kKeyBytes);
  if (blocks == 0) return keys;

  const size_t parent_at = kLabel.size() + kKeyBytes;
  const size_t count_at = parent_at + kKeyBytes;
  const size_t tokens_at = count_at + 4;
  const size_t extra_at = tokens_at + 4 * block_tokens;
  std::vector<uint8_t> message(extra_at + 4);
  std::memcpy(message.data(), kLabel.data(), kLabel.size());
  std::memcpy(message.data() + kLabel.size(), namespace_id.data(), kKeyBytes);
  std::memcpy(message.data() + parent_at, parent.data(), kKeyBytes);
  put_u32(message.data() + count_at, block_tokens);

  auto extra = extras.begin();
  for (size_t i = 0; i < blocks; ++i) {
    const uint32_t* tokens = token_ids.data() + i * block_tokens;
    std::memcpy(message.data() + tokens_at, tokens, 4 * block_tokens);
    std::string_view bytes;
    if (extra != extras.end() && extra->block == i) bytes = (extra++)->bytes;
    message.resize(extra_at + 4 + bytes.size());
    put_u32(message.data() + extra_at, bytes.size());
    if (!bytes.empty()) std::memcpy(message.data() + extra_at + 4, bytes.data(), bytes.size());

    const Digest key = sha256(message.data(), message.size(), compress);
    std::memcpy(keys.data() + i * kKeyBytes, key.data(), kKeyBytes);
    std::memcpy(message.data() + parent_at, key.data(), kKeyBytes);
  }
  return keys;
}

}  // namespace evoke
