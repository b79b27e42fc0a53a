// Which NUMA node memory lies on: asking for a node, and asking the kernel what came of it. Plain
// system calls, so that the checker of tests/numa can be linked statically with this very code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace evoke {

constexpr int kAnyNode = -1;

struct NumaNode {
  int number;
  bool has_cpu;
  uint64_t memory_bytes;
  uint64_t free_bytes;
  // What is online as movable. A long-term pin (CUDA host registration, buffers of io_uring) moves
  // such pages to another node without saying so.
  uint64_t movable_bytes;
  uint64_t free_huge_bytes;  // of the reserve of 2 MiB pages
};

// Online nodes with memory, by number; none on a kernel without NUMA. The roots are for tests.
std::vector<NumaNode> numa_nodes(const std::string& sys = "/sys",
                                 const std::string& proc = "/proc");

// Pages of this range come from that node only. Before the first touch. Throws std::system_error
// (EINVAL: there is no such node, or it has no memory).
void bind_to_node(void* at, size_t length_bytes, int node);

// Bytes of a touched range by where they are now.
struct Placement {
  uint64_t on_node_bytes = 0;
  uint64_t elsewhere_bytes = 0;
  uint64_t unknown_bytes = 0;  // the kernel would not say, even when the pages were touched again
};

// page_bytes: the distance between questions; a huge page answers for all that it holds. Throws
// std::system_error.
Placement placement_of(uint8_t* at, size_t length_bytes, size_t page_bytes, int node);

}  // namespace evoke
