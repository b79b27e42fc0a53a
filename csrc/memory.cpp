#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace evoke {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The number after `name` at the start of a line ("name 123" or "name: 123 kB").
std::optional<uint64_t> field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  uint64_t value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> word && word == name && words >> value) return value;
  }
  return std::nullopt;
}

// A file that holds one number; nothing for "max" or when there is no such file.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

struct CgroupMount {
  std::string root;   // which cgroup is mounted
  std::string point;  // where
  bool v2 = false;
};

struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive;  // field of memory.stat
};
constexpr CgroupFiles kV1{"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                          "total_inactive_file"};
constexpr CgroupFiles kV2{"/memory.max", "/memory.current", "inactive_file"};

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Mounts that may carry the memory controller (proc(5), mountinfo).
std::vector<CgroupMount> cgroup_mounts(const std::string& proc) {
  std::vector<CgroupMount> mounts;
  std::ifstream file(proc + "/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skip;
    CgroupMount mount;
    words >> skip >> skip >> skip >> mount.root >> mount.point;
    while (words >> skip && skip != "-") {
    }
    std::string type;
    std::string options;
    words >> type >> skip >> options;
    mount.v2 = type == "cgroup2";
    if (mount.v2 || (type == "cgroup" && has_word(options, "memory"))) mounts.push_back(mount);
  }
  return mounts;
}

// This process's path in the memory hierarchy of v1 or v2 (cgroups(7), /proc/PID/cgroup).
std::optional<std::string> cgroup_path(const std::string& proc, bool v2) {
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? line.rfind("0::", 0) == 0 : has_word(controllers, "memory")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

uint64_t left_in(const std::string& directory, const CgroupFiles& files) {
  const auto limit = number_in(directory + files.limit);
  const auto usage = number_in(directory + files.usage);
  if (!limit || !usage) return kUnlimited;
  const uint64_t inactive = field_of(directory + "/memory.stat", files.inactive).value_or(0);
  const uint64_t used = *usage - std::min(*usage, inactive);
  return *limit - std::min(*limit, used);
}

uint64_t left_in_cgroups(const std::string& proc, const CgroupMount& mount) {
  const auto path = cgroup_path(proc, mount.v2);
  if (!path) return kUnlimited;
  // In a container the path may lie outside what is mounted: then the mount is our own group.
  std::string below = *path;
  if (mount.root != "/") {
    const bool inside = below.rfind(mount.root, 0) == 0 &&
                        (below.size() == mount.root.size() || below[mount.root.size()] == '/');
    below = inside ? below.substr(mount.root.size()) : "";
  }
  const CgroupFiles& files = mount.v2 ? kV2 : kV1;
  uint64_t left = left_in(mount.point, files);
  while (!below.empty() && below != "/") {
    left = std::min(left, left_in(mount.point + below, files));
    below.erase(below.rfind('/'));
  }
  return left;
}

}  // namespace

void throw_system_error(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(void* address, size_t length_bytes)
    : address_(static_cast<uint8_t*>(address)), length_bytes_(length_bytes) {}

Mapping::Mapping(Mapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      length_bytes_(std::exchange(other.length_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(length_bytes_, other.length_bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (!address_) return;
  [[maybe_unused]] const int rc = munmap(address_, length_bytes_);
  assert(rc == 0);
}

Fd make_memfd(const std::string& name, size_t length_bytes, bool huge) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u);
  Fd fd(memfd_create(name.c_str(), flags));
  if (fd.get() < 0) throw_system_error(errno, "memfd_create(" + name + ")");
  if (ftruncate(fd.get(), static_cast<off_t>(length_bytes)) != 0) {
    throw_system_error(errno, "memfd " + name + ": " + std::to_string(length_bytes) + " bytes");
  }
  return fd;
}

int seals_of(int fd) { return fcntl(fd, F_GET_SEALS); }

Fd make_pool_memfd(size_t pool_bytes, const std::string& name, bool huge) {
  const size_t most = std::numeric_limits<off_t>::max();
  if (pool_bytes == 0 || pool_bytes > most || (huge && pool_bytes % kHugePageBytes != 0)) {
    throw std::invalid_argument(
        "pool_bytes: " + std::to_string(pool_bytes) +
        (huge ? " is not a positive multiple of 2 MiB" : " is not a positive file length"));
  }
  Fd fd = make_memfd(name, pool_bytes, huge);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_error(errno, "sealing memfd " + name);
  }
  return fd;
}

void check_pool_memfd(int fd, size_t pool_bytes) {
  const std::string name = "fd: " + std::to_string(fd);
  const int seals = seals_of(fd);
  if (seals < 0) throw std::invalid_argument(name + " is not a memfd");
  if (!(seals & F_SEAL_SHRINK)) throw std::invalid_argument(name + " is not sealed against SHRINK");
  struct stat status = {};
  if (fstat(fd, &status) != 0) throw_system_error(errno, name);
  if (static_cast<uint64_t>(status.st_size) < pool_bytes) {
    throw std::invalid_argument("pool_bytes: " + std::to_string(pool_bytes) + ", but fd " +
                                std::to_string(fd) + " has " + std::to_string(status.st_size));
  }
}

uint64_t memory_available_bytes(const std::string& proc) {
  const auto available_kib = field_of(proc + "/meminfo", "MemAvailable:");
  if (!available_kib) throw std::runtime_error(proc + "/meminfo: no MemAvailable");
  uint64_t left = *available_kib * 1024;
  for (const CgroupMount& mount : cgroup_mounts(proc)) {
    left = std::min(left, left_in_cgroups(proc, mount));
  }
  return left;
}

}  // namespace evoke
