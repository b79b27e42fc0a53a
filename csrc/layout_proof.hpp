// Proof that no two bytes of a layout coincide.
#pragma once

#include <cstdint>
#include <vector>

#include "layout.hpp"

namespace evoke {

// Throws std::invalid_argument naming two segments and a pool offset when bytes coincide, or when
// it can't be proved within the limits. Every byte must already be known to lie in the pool.
//
// By nesting first: when the places of some segments within one step of their common largest
// stride are disjoint and span no more than that stride, they are disjoint at every step. Where
// strides don't nest, the runs in question are listed and sorted, kMaxEnumeratedRuns at most.
void prove_disjoint(const std::vector<RunSegment>& segments, uint64_t slots);

}  // namespace evoke
