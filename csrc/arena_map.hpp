// Where an arena's memory comes from: huge pages, ordinary ones, one NUMA node, or a device.
#pragma once

#include <cstddef>
#include <string>

#include "memory.hpp"

namespace evoke {

enum class Backing { kAuto, kHugetlb, kThp, k4k, kDevice };

struct ArenaMemory {
  Mapping memory;
  Backing backing;
};

// `want` is the best backing to try; the next worse one follows when the machine lacks it.
// length_bytes: a multiple of 2 MiB. node: kAnyNode or the one that all pages come from. Throws
// std::system_error when nothing can be mapped or the node refuses.
ArenaMemory map_arena(size_t length_bytes, Backing want, int node);

// The first length_bytes of a devdax character device. Throws std::invalid_argument when it is
// something else or smaller, std::system_error when it can't be opened or mapped.
ArenaMemory map_device(const std::string& path, size_t length_bytes);

}  // namespace evoke
