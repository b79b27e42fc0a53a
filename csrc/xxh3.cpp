#include "xxh3.hpp"

#include <bit>
#include <cassert>
#include <cstring>

namespace evoke {

static_assert(std::endian::native == std::endian::little, "sums are read as little-endian words");

namespace {

constexpr uint64_t kPrime32_2 = 0x85EBCA77U;
constexpr uint64_t kPrime32_3 = 0xC2B2AE3DU;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87U;
constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4FU;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9U;
constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63U;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5U;
constexpr uint64_t kAvalanche = 0x165667919E3779F9U;
constexpr size_t kLastSecret = kSecretBytes - kStripeBytes - 7;
constexpr size_t kMergeSecret = 11;

uint64_t load_word(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// What one stripe adds to the accumulators.
void stripe_terms(uint64_t* terms, const uint8_t* data, const uint8_t* secret) {
  uint64_t words[8];
  std::memcpy(words, data, sizeof words);
  for (size_t i = 0; i < 8; i++) {
    const uint64_t keyed = words[i] ^ load_word(secret + 8 * i);
    terms[i] = words[i ^ 1] + (keyed & 0xFFFFFFFFU) * (keyed >> 32);
  }
}

void scramble(uint64_t* acc) {
  for (size_t i = 0; i < 8; i++) {
    acc[i] ^= acc[i] >> 47;
    acc[i] ^= load_word(kXxhSecret + kScrambleSecret + 8 * i);
    acc[i] *= kXxhPrime32;
  }
}

uint64_t fold_product(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

alignas(64) const uint8_t kXxhSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

Xxh3::Xxh3()
    : acc{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
          kPrime64_4, kPrime32_2, kPrime64_5, kXxhPrime32} {}

void xxh3_feed(Xxh3& state, const uint8_t* data, size_t stripes) {
  if (stripes == 0) return;
  uint64_t terms[8];
  for (size_t s = 0; s < stripes; s++) {
    const uint64_t place = state.stripes % kStripesPerScramble;
    if (place == 0 && state.stripes > 0) scramble(state.acc);
    stripe_terms(terms, data + s * kStripeBytes, kXxhSecret + 8 * place);
    for (size_t i = 0; i < 8; i++) state.acc[i] += terms[i];
    state.stripes++;
  }
  std::memcpy(state.last, data + (stripes - 1) * kStripeBytes, kStripeBytes);
}

uint64_t xxh3_finish(Xxh3& state, const uint8_t* tail, size_t tail_bytes) {
  const uint64_t length_bytes = state.stripes * kStripeBytes + tail_bytes;
  assert(length_bytes >= kSumMinBytes && tail_bytes < kStripeBytes);
  uint64_t terms[8];
  if (tail_bytes > 0) {
    if (state.stripes % kStripesPerScramble == 0) scramble(state.acc);
    std::memmove(state.last, state.last + tail_bytes, kStripeBytes - tail_bytes);
    std::memcpy(state.last + kStripeBytes - tail_bytes, tail, tail_bytes);
  } else {  // the newest stripe was the input's last: take back its ordinary weight
    const uint64_t place = (state.stripes - 1) % kStripesPerScramble;
    stripe_terms(terms, state.last, kXxhSecret + 8 * place);
    for (size_t i = 0; i < 8; i++) state.acc[i] -= terms[i];
  }
  stripe_terms(terms, state.last, kXxhSecret + kLastSecret);
  for (size_t i = 0; i < 8; i++) state.acc[i] += terms[i];
  uint64_t sum = length_bytes * kPrime64_1;
  for (size_t i = 0; i < 8; i += 2) {
    const uint8_t* secret = kXxhSecret + kMergeSecret + 8 * i;
    sum += fold_product(state.acc[i] ^ load_word(secret), state.acc[i + 1] ^ load_word(secret + 8));
  }
  sum ^= sum >> 37;
  sum *= kAvalanche;
  return sum ^ (sum >> 32);
}

}  // namespace evoke
