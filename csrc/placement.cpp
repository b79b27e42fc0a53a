#include "placement.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace evoke {
namespace {

constexpr int kBind = 2;             // MPOL_BIND, of linux/mempolicy.h, which need not be installed
constexpr size_t kMaxNodes = 1024;   // what kernels are built for at most
constexpr size_t kPagesAsked = 512;  // in one system call
constexpr int kQuestions = 3;        // to a page that does not answer
constexpr uint64_t kKibBytes = 1024;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8" as numbers.
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    int last = 0;
    const int found = sscanf(part.c_str(), "%d-%d", &first, &last);
    if (found < 1) continue;
    for (int i = first; i <= (found == 2 ? last : first); ++i) numbers.push_back(i);
  }
  return numbers;
}

// "Node 1 MemTotal:  262144 kB"
uint64_t meminfo_bytes(const std::string& path, const std::string& what) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(what + ":");
    if (at == std::string::npos) continue;
    return std::stoull(line.substr(at + what.size() + 1)) * kKibBytes;
  }
  return 0;
}

// Bytes present in the zone Movable by node, from zoneinfo.
std::map<int, uint64_t> movable_by_node(const std::string& path) {
  std::map<int, uint64_t> found;
  std::ifstream file(path);
  int node = kAnyNode;
  for (std::string line; std::getline(file, line);) {
    std::array<char, 32> zone{};
    int number = 0;
    if (sscanf(line.c_str(), "Node %d, zone %31s", &number, zone.data()) == 2) {
      node = std::string(zone.data()) == "Movable" ? number : kAnyNode;
      continue;
    }
    unsigned long long pages = 0;
    if (node != kAnyNode && sscanf(line.c_str(), " present %llu", &pages) == 1) {
      found[node] += pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    }
  }
  return found;
}

long ask(std::array<void*, kPagesAsked>& pages, size_t count,
         std::array<int, kPagesAsked>& answers) {
  return syscall(SYS_move_pages, 0, count, pages.data(), nullptr, answers.data(), 0);
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& sys, const std::string& proc) {
  const std::string root = sys + "/devices/system/node/";
  const std::vector<int> with_cpu = parse_list(first_line(root + "has_cpu"));
  std::map<int, uint64_t> movable = movable_by_node(proc + "/zoneinfo");
  std::vector<NumaNode> nodes;
  for (const int number : parse_list(first_line(root + "has_memory"))) {
    const std::string folder = root + "node" + std::to_string(number);
    const std::string huge = first_line(folder + "/hugepages/hugepages-2048kB/free_hugepages");
    nodes.push_back({
        .number = number,
        .has_cpu = std::find(with_cpu.begin(), with_cpu.end(), number) != with_cpu.end(),
        .memory_bytes = meminfo_bytes(folder + "/meminfo", "MemTotal"),
        .free_bytes = meminfo_bytes(folder + "/meminfo", "MemFree"),
        .movable_bytes = movable[number],
        .free_huge_bytes = huge.empty() ? 0 : std::stoull(huge) * kHugePageBytes,
    });
  }
  return nodes;
}

void bind_to_node(void* at, size_t length_bytes, int node) {
  if (node < 0 || static_cast<size_t>(node) >= kMaxNodes) {
    throw std::invalid_argument("node: " + std::to_string(node) + " is not in 0.." +
                                std::to_string(kMaxNodes - 1));
  }
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kBits> mask{};
  const auto bit = static_cast<size_t>(node);
  mask[bit / kBits] = 1ul << (bit % kBits);
  // The kernel takes one bit less than it is told.
  if (syscall(SYS_mbind, at, length_bytes, kBind, mask.data(), kMaxNodes + 1, 0) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "memory on NUMA node " + std::to_string(node));
  }
}

Placement placement_of(uint8_t* at, size_t length_bytes, size_t page_bytes, int node) {
  Placement found;
  std::array<void*, kPagesAsked> pages{};
  std::array<int, kPagesAsked> answers{};
  for (size_t from = 0; from < length_bytes;) {
    size_t count = 0;
    for (; count < kPagesAsked && from < length_bytes; ++count, from += page_bytes) {
      pages[count] = at + from;
    }
    for (int question = 1;; ++question) {
      if (ask(pages, count, answers) < 0) {
        throw std::system_error(errno, std::generic_category(), "placement");
      }
      // Balancing between nodes makes pages unreadable for a moment: a touch brings them back. An
      // atomic "or 0" leaves a block that is in use as it is.
      bool silent = false;
      for (size_t i = 0; i < count && question < kQuestions; ++i) {
        if (answers[i] >= 0) continue;
        silent = true;
        __atomic_fetch_or(static_cast<uint8_t*>(pages[i]), uint8_t{0}, __ATOMIC_RELAXED);
      }
      if (!silent) break;
    }
    for (size_t i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(static_cast<uint8_t*>(pages[i]) - at);
      const uint64_t bytes = std::min(page_bytes, length_bytes - place);
      (answers[i] < 0       ? found.unknown_bytes
       : answers[i] == node ? found.on_node_bytes
                            : found.elsewhere_bytes) += bytes;
    }
  }
  return found;
}

}  // namespace evoke
