#include "pool.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace evoke {

Pool::Pool(int fd, uint64_t pool_bytes, std::shared_ptr<Layout> layout)
    : pool_bytes_(pool_bytes), layout_(std::move(layout)) {
  if (layout_->pool_bytes() > pool_bytes) {
    throw std::invalid_argument("layout: made for pool_bytes " +
                                std::to_string(layout_->pool_bytes()) + ", the pool has " +
                                std::to_string(pool_bytes));
  }
  struct stat status;
  if (fstat(fd, &status) != 0) {
    throw std::invalid_argument("fd: " + std::to_string(fd) + " is not open");
  }
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) < pool_bytes) {
    throw std::invalid_argument("fd: " + std::to_string(status.st_size) +
                                " bytes, fewer than pool_bytes " + std::to_string(pool_bytes));
  }
  void* mapped = mmap(nullptr, pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap pool");
  address_ = static_cast<uint8_t*>(mapped);
}

Pool::~Pool() { munmap(address_, pool_bytes_); }

}  // namespace evoke
