#include "sha256.hpp"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace evoke {
namespace {

// FIPS 180-4, 4.2.2: the fractional bits of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// FIPS 180-4, 5.3.3: the fractional bits of the square roots of the first 8 primes.
constexpr uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void store_big_endian(uint8_t* p, uint32_t value) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

#if defined(__x86_64__)
bool has_sha_instructions() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const bool ssse3 = c >> 9 & 1;
  const bool sse41 = c >> 19 & 1;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return ssse3 && sse41 && (b >> 29 & 1);
}

__attribute__((target("sha,ssse3,sse4.1"))) void compress_sha_ni(uint32_t* state,
                                                                 const uint8_t* data,
                                                                 size_t blocks) {
  const __m128i byte_order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i abcd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i efgh = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  // sha256rnds2 wants the state as ABEF and CDGH, most significant lane first.
  const __m128i cdab = _mm_shuffle_epi32(abcd, 0xb1);
  const __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, cdab, 0xf0);

  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i words[4];
    for (int i = 0; i < 4; ++i) {
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i));
      words[i] = _mm_shuffle_epi8(raw, byte_order);
    }
#pragma GCC unroll 16
    for (int quad = 0; quad < 16; ++quad) {
      __m128i& current = words[quad & 3];
      if (quad >= 4) {  // W[t-16..] is overwritten by W[t..]
        const __m128i last = words[(quad + 3) & 3];
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(current, words[(quad + 1) & 3]),
                                          _mm_alignr_epi8(last, words[(quad + 2) & 3], 4));
        current = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * quad));
      const __m128i message = _mm_add_epi32(current, constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, message);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(message, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

void sha256_compress_portable(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) w[t] = load_big_endian(data + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t v[8];
    std::memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; ++t) {
      const uint32_t e = v[4];
      const uint32_t a = v[0];
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t choose = (e & v[5]) ^ (~e & v[6]);
      const uint32_t t1 = v[7] + sum1 + choose + kRound[t] + w[t];
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
      for (int i = 7; i > 0; --i) v[i] = v[i - 1];
      v[4] += t1;
      v[0] = t1 + sum0 + majority;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
  }
}

Sha256Compress sha256_compress_best() {
#if defined(__x86_64__)
  static const Sha256Compress best =
      has_sha_instructions() ? compress_sha_ni : sha256_compress_portable;
  return best;
#else
  return sha256_compress_portable;
#endif
}

Digest sha256(const uint8_t* data, size_t length_bytes, Sha256Compress compress) {
  uint32_t state[8];
  std::memcpy(state, kInitial, sizeof state);
  const size_t whole = length_bytes / 64;
  if (whole > 0) compress(state, data, whole);

  const size_t rest = length_bytes % 64;
  uint8_t tail[128] = {};
  if (rest > 0) std::memcpy(tail, data + 64 * whole, rest);
  tail[rest] = 0x80;
  const size_t tail_bytes = rest < 56 ? 64 : 128;
  const uint64_t bits = uint64_t{length_bytes} * 8;
  store_big_endian(tail + tail_bytes - 8, static_cast<uint32_t>(bits >> 32));
  store_big_endian(tail + tail_bytes - 4, static_cast<uint32_t>(bits));
  compress(state, tail, tail_bytes / 64);

  Digest digest;
  for (int i = 0; i < 8; ++i) store_big_endian(digest.data() + 4 * i, state[i]);
  return digest;
}

}  // namespace evoke
