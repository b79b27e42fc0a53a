#include "arena_map.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "granules.hpp"
#include "placement.hpp"

namespace evoke {
namespace {

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

bool thp_possible() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS;

// Empty when the reserve has too few pages: they are taken here and not at the first touch.
Mapping map_hugetlb(size_t length) {
  constexpr int kFlags = kMapFlags | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT);
  void* const address = mmap(nullptr, length, kProtection, kFlags, -1, 0);
  return address == MAP_FAILED ? Mapping() : Mapping(address, length);
}

// Starts at a multiple of 2 MiB, so that transparent huge pages fit.
Mapping map_aligned(size_t length) {
  void* const address = mmap(nullptr, length + kGranuleBytes, kProtection, kMapFlags, -1, 0);
  if (address == MAP_FAILED) {
    throw_system_error(errno, "arena of " + std::to_string(length) + " bytes");
  }
  auto* const raw = static_cast<uint8_t*>(address);
  const auto place = reinterpret_cast<uintptr_t>(raw);
  const size_t skip = round_up(place, kGranuleBytes) - place;
  if (skip > 0) munmap(raw, skip);
  munmap(raw + skip + length, kGranuleBytes - skip);
  return Mapping(raw + skip, length);
}

// The reserve of huge pages belongs to nodes: a bound mapping that finds its node's share too small
// would be killed at the touch.
bool node_has_huge(int node, size_t length) {
  if (node == kAnyNode) return true;
  const std::vector<NumaNode> nodes = numa_nodes();
  return std::any_of(nodes.begin(), nodes.end(), [&](const NumaNode& one) {
    return one.number == node && one.free_huge_bytes >= length;
  });
}

// A bound range that its node cannot fill is not refused at the touch: the kernel kills processes.
void require_free(int node, size_t length) {
  for (const NumaNode& one : numa_nodes()) {
    if (one.number == node && one.free_bytes < length) {
      throw_system_error(ENOMEM, "NUMA node " + std::to_string(node) + " has " +
                                     std::to_string(one.free_bytes) + " bytes free, wanted " +
                                     std::to_string(length));
    }
  }
}

uint64_t device_bytes(dev_t device) {
  std::ifstream file("/sys/dev/char/" + std::to_string(major(device)) + ":" +
                     std::to_string(minor(device)) + "/size");
  uint64_t bytes = 0;
  file >> bytes;
  return bytes;
}

void keep_private(uint8_t* memory, size_t length) {
  // A child must not share it, and a core file must not hold the tenants' text.
  madvise(memory, length, MADV_DONTFORK);
  madvise(memory, length, MADV_DONTDUMP);
}

}  // namespace

ArenaMemory map_arena(size_t length, Backing want, int node) {
  ArenaMemory mapped{Mapping(), Backing::kHugetlb};
  if ((want == Backing::kAuto || want == Backing::kHugetlb) && node_has_huge(node, length)) {
    mapped.memory = map_hugetlb(length);
  }
  if (!mapped.memory.data()) {
    if (node != kAnyNode) require_free(node, length);
    mapped.memory = map_aligned(length);
    uint8_t* const memory = mapped.memory.data();
    const bool huge =
        want != Backing::k4k && thp_possible() && madvise(memory, length, MADV_HUGEPAGE) == 0;
    if (!huge) madvise(memory, length, MADV_NOHUGEPAGE);
    mapped.backing = huge ? Backing::kThp : Backing::k4k;
  }
  if (node != kAnyNode) bind_to_node(mapped.memory.data(), length, node);
  keep_private(mapped.memory.data(), length);
  return mapped;
}

ArenaMemory map_device(const std::string& path, size_t length) {
  const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) throw_system_error(errno, "device " + path);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) throw_system_error(errno, "device " + path);
  if (!S_ISCHR(info.st_mode)) {
    throw std::invalid_argument("device: " + path + " is not a devdax character device");
  }
  const uint64_t bytes = device_bytes(info.st_rdev);
  if (bytes < length) {
    throw std::invalid_argument("device: " + path + " has " + std::to_string(bytes) +
                                " bytes, wanted " + std::to_string(length));
  }
  void* const address = mmap(nullptr, length, kProtection, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) throw_system_error(errno, "device " + path);
  ArenaMemory mapped{Mapping(address, length), Backing::kDevice};
  keep_private(mapped.memory.data(), length);
  return mapped;
}

}  // namespace evoke
