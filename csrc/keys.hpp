// Chained block keys; the byte layout is in docs/protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sha256.hpp"

namespace evoke {

constexpr size_t kKeyBytes = 32;

struct Extra {
  size_t block;  // number of the block in this call, from 0
  std::string_view bytes;
};

// Keys of the full blocks of token_ids: n x 32 bytes. key[i] = SHA-256("evoke-block-1" ||
// namespace_id || key[i-1] || u32 count || token ids || u32 extra length || extra), integers
// little-endian, count = block_tokens, key[-1] = parent. Throws std::invalid_argument naming the
// argument: namespace_id or parent not 32 bytes, block_tokens 0, an extra for a block that is not
// a full one or named twice.
std::vector<uint8_t> chain_keys(std::string_view namespace_id, std::span<const uint32_t> token_ids,
                                size_t block_tokens, std::string_view parent,
                                std::vector<Extra> extras, Sha256Compress compress);

}  // namespace evoke
