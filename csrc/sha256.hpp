// SHA-256 (FIPS 180-4), one-shot. Uses the SHA instructions of x86 when the processor has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace evoke {

using Digest = std::array<uint8_t, 32>;

// Folds `blocks` blocks of 64 bytes into the state.
using Sha256Compress = void (*)(uint32_t* state, const uint8_t* data, size_t blocks);

// The fastest of this processor; chosen once.
Sha256Compress sha256_compress_best();

// Standard C++ only; equal results.
void sha256_compress_portable(uint32_t* state, const uint8_t* data, size_t blocks);

Digest sha256(const uint8_t* data, size_t length_bytes, Sha256Compress compress);

inline Digest sha256(const uint8_t* data, size_t length_bytes) {
  return sha256(data, length_bytes, sha256_compress_best());
}

}  // namespace evoke
