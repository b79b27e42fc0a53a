// File descriptors, mappings, memfds and how much memory is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace evoke {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Owns a mapping.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t length_bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  uint8_t* data() const { return address_; }
  size_t size() const { return length_bytes_; }

 private:
  uint8_t* address_ = nullptr;
  size_t length_bytes_ = 0;
};

// "what: strerror" as a std::system_error of `error`.
[[noreturn]] void throw_system_error(int error, const std::string& what);

// A close-on-exec memfd of length_bytes without seals yet. Throws std::system_error.
Fd make_memfd(const std::string& name, size_t length_bytes, bool huge);

// F_SEAL_* of a memfd, or -1 when the descriptor has none (not a memfd).
int seals_of(int fd);

// A pool's memfd: sealed SHRINK|GROW|SEAL. Throws std::invalid_argument for a length of 0 or (huge)
// one that is not a multiple of 2 MiB, std::system_error when the kernel refuses.
Fd make_pool_memfd(size_t pool_bytes, const std::string& name, bool huge);

// Throws std::invalid_argument unless fd is a memfd of at least pool_bytes that can't shrink.
void check_pool_memfd(int fd, size_t pool_bytes);

// The least of MemAvailable and what each memory cgroup (v1 and v2) above this process leaves,
// counting inactive page cache as free. `proc` is where procfs is mounted. Throws
// std::runtime_error when MemAvailable can't be read.
uint64_t memory_available_bytes(const std::string& proc);

}  // namespace evoke
