// SipHash-2-4 with 128-bit output, of 32-byte keys (Aumasson and Bernstein, "SipHash: a fast
// short-input PRF", 2012; the 128-bit output is that of its authors' reference version).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace evoke {

struct Tag {
  uint64_t half[2];  // the 16 output bytes as two little-endian words
  bool operator==(const Tag&) const = default;
};

struct TagSecret {
  uint64_t half[2];
};

namespace siphash_detail {

// V is uint64_t, or a vector of them to hash several keys at once.
template <typename V>
struct State {
  V v0, v1, v2, v3;
};

template <typename V>
__attribute__((always_inline)) inline void rotate(V& x, int bits) {
  x = x << bits | x >> (64 - bits);
}

template <typename V>
__attribute__((always_inline)) inline void rounds(State<V>& s, int count) {
#pragma GCC unroll 4
  for (int i = 0; i < count; ++i) {
    s.v0 += s.v1;
    s.v2 += s.v3;
    rotate(s.v1, 13);
    rotate(s.v3, 16);
    s.v1 ^= s.v0;
    s.v3 ^= s.v2;
    rotate(s.v0, 32);
    s.v2 += s.v1;
    s.v0 += s.v3;
    rotate(s.v1, 17);
    rotate(s.v3, 21);
    s.v1 ^= s.v2;
    s.v3 ^= s.v0;
    rotate(s.v2, 32);
  }
}

template <typename V>
__attribute__((always_inline)) inline void absorb(State<V>& s, const V& word) {
  s.v3 ^= word;
  rounds(s, 2);
  s.v0 ^= word;
}

// word[0..3]: the key; out[0..1]: the tag.
template <typename V>
__attribute__((always_inline)) inline void hash(const TagSecret& secret, const V* word, V* out) {
  const V zero{};
  State<V> s{
      zero + (secret.half[0] ^ 0x736f6d6570736575), zero + (secret.half[1] ^ 0x646f72616e646f83),
      zero + (secret.half[0] ^ 0x6c7967656e657261), zero + (secret.half[1] ^ 0x7465646279746573)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) absorb(s, word[i]);
  absorb(s, zero + (uint64_t{32} << 56));  // the length, in the last word's top byte
  s.v2 ^= zero + 0xee;
  rounds(s, 4);
  out[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  s.v1 ^= zero + 0xdd;
  rounds(s, 4);
  out[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

}  // namespace siphash_detail

inline Tag tag_of(const TagSecret& secret, const uint8_t* key) {
  uint64_t word[4];
  std::memcpy(word, key, sizeof word);
  Tag tag;
  siphash_detail::hash<uint64_t>(secret, word, tag.half);
  return tag;
}

// Tags of `count` packed keys, several at once where the processor has wide registers.
void tags_of(const TagSecret& secret, const uint8_t* keys, size_t count, Tag* tags);

}  // namespace evoke
