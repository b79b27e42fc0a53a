#include "siphash.hpp"

namespace evoke {
namespace {

#if defined(__x86_64__)
// Eight lanes: one register of AVX-512, two of AVX2, which then hide each other's latency.
constexpr size_t kLanes = 8;
using Words = uint64_t __attribute__((vector_size(8 * kLanes)));

__attribute__((always_inline)) inline void eight_tags(const TagSecret& secret, const uint8_t* keys,
                                                      Tag* tags) {
  uint64_t in[4][kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t i = 0; i < 4; ++i) std::memcpy(&in[i][lane], keys + 32 * lane + 8 * i, 8);
  }
  Words words[4];
  std::memcpy(words, in, sizeof words);
  Words out[2];
  siphash_detail::hash<Words>(secret, words, out);
  for (size_t lane = 0; lane < kLanes; ++lane) tags[lane] = {{out[0][lane], out[1][lane]}};
}

__attribute__((target("avx512f"))) size_t tags_avx512(const TagSecret& secret, const uint8_t* keys,
                                                      size_t count, Tag* tags) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) eight_tags(secret, keys + 32 * i, tags + i);
  return i;
}

__attribute__((target("avx2"))) size_t tags_avx2(const TagSecret& secret, const uint8_t* keys,
                                                 size_t count, Tag* tags) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) eight_tags(secret, keys + 32 * i, tags + i);
  return i;
}

using Wide = size_t (*)(const TagSecret&, const uint8_t*, size_t, Tag*);

Wide widest() {
  if (__builtin_cpu_supports("avx512f")) return tags_avx512;
  return __builtin_cpu_supports("avx2") ? tags_avx2 : nullptr;
}
#endif

}  // namespace

void tags_of(const TagSecret& secret, const uint8_t* keys, size_t count, Tag* tags) {
  size_t i = 0;
#if defined(__x86_64__)
  static const Wide wide = widest();
  if (wide) i = wide(secret, keys, count, tags);
#endif
  for (; i < count; ++i) tags[i] = tag_of(secret, keys + 32 * i);
}

}  // namespace evoke
