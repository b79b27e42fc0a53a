// Copies of one block between its slot in a pool and its contiguous stored bytes, with its sum.
//
// Nothing here owns memory or locks, so a fault may jump out of any of these (see guard.hpp).
// What they wrote is visible to other threads when they return.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "layout.hpp"

namespace evoke {

// Slot -> stored, block_bytes. The sum is that of the bytes written, even when a peer changes the
// slot meanwhile.
uint64_t gather_block(const Kernel& kernel, const Layout& layout, const uint8_t* pool,
                      uint64_t slot, uint8_t* stored);

// Stored -> slot. The sum is that of the stored bytes.
uint64_t scatter_block(const Kernel& kernel, const Layout& layout, uint8_t* pool, uint64_t slot,
                       const uint8_t* stored);

// Stored -> stored.
uint64_t move_block(const Kernel& kernel, uint8_t* target, const uint8_t* source, uint64_t bytes);

}  // namespace evoke
