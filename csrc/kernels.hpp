// Copy kernels: one loop that moves runs between a contiguous stretch and scattered places and
// feeds the checksum with what it moves. Chosen once per process by CPU features, then by
// self_test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "xxh3.hpp"

namespace evoke {

// Runs of run_bytes each (a multiple of 64): contiguous[i * run_bytes] <-> base + offsets[i].
struct Runs {
  uint8_t* contiguous;
  uint8_t* base;
  const int64_t* offsets;
  size_t count;
  size_t run_bytes;
};

struct Kernel {
  const char* name;
  bool (*supported)();
  // base + offsets -> contiguous. Each byte is read once: the sum is of the bytes written.
  void (*gather)(const Runs& runs, Xxh3& sum);
  // contiguous -> base + offsets. The contiguous side may be read twice.
  void (*scatter)(const Runs& runs, Xxh3& sum);
  // Feeds the sum without copying.
  void (*feed)(Xxh3& sum, const uint8_t* data, size_t stripes);
  // Makes what the other functions wrote visible before any later store.
  void (*fence)();
};

// The kernel in use. Never null.
const Kernel& kernel();

// Contiguous copy of whole stripes.
inline void copy_stripes(const Kernel& k, uint8_t* target, const uint8_t* source, size_t stripes,
                         Xxh3& sum) {
  const int64_t at_base = 0;
  k.gather({target, const_cast<uint8_t*>(source), &at_base, 1, stripes * kStripeBytes}, sum);
}

// Uses that one from now on. False (and no change) when this CPU has none of that name.
bool use_kernel(const std::string& name);

// Measures every supported kernel for about milliseconds in all, and uses the fastest from now on.
// Bytes per CPU second by kernel name.
std::vector<std::pair<std::string, double>> self_test(int milliseconds);

// Sum of any buffer; below 256 bytes it is zero-padded to that first.
uint64_t xxh3_64(const uint8_t* data, size_t bytes);

}  // namespace evoke
