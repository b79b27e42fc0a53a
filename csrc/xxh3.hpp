// XXH3-64 (seed 0, default secret) of inputs of at least 256 bytes, as a state that is fed in
// 64-byte stripes, so that a copy loop can feed it from the registers it stores.
//
// Written from the algorithm's description: github.com/Cyan4973/xxHash, doc/xxhash_spec.md,
// "XXH3 algorithm (for input larger than 240 bytes)".
#pragma once

#include <cstddef>
#include <cstdint>

namespace evoke {

inline constexpr size_t kStripeBytes = 64;
inline constexpr uint64_t kStripesPerScramble = 16;
inline constexpr size_t kSumMinBytes = 256;  // shorter inputs are zero-padded to this

inline constexpr uint32_t kXxhPrime32 = 0x9E3779B1U;  // XXH_PRIME32_1
inline constexpr size_t kSecretBytes = 192;
inline constexpr size_t kScrambleSecret = kSecretBytes - kStripeBytes;  // offset of that secret
alignas(64) extern const uint8_t kXxhSecret[kSecretBytes];

// State after a whole number of stripes. The scramble that ends each 16 stripes is applied just
// before the next stripe, because the input's last stripe is weighed otherwise.
struct Xxh3 {
  Xxh3();
  alignas(64) uint64_t acc[8];
  alignas(64) uint8_t last[kStripeBytes];  // the newest stripe
  uint64_t stripes = 0;
};

// Feeds `stripes` stripes in portable code.
void xxh3_feed(Xxh3& state, const uint8_t* data, size_t stripes);

// The sum of everything fed and tail_bytes (< 64) more. At least 256 bytes in all.
uint64_t xxh3_finish(Xxh3& state, const uint8_t* tail, size_t tail_bytes);

}  // namespace evoke
