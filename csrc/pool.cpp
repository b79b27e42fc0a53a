#include "pool.hpp"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace evoke {
namespace {

// A userfaultfd under which an access to a page that was never there is a SIGBUS, or none where the
// kernel does not give one. From /dev/userfaultfd where the call is for privileged processes.
Fd make_hole_guard() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY;
  Fd guard(static_cast<int>(syscall(SYS_userfaultfd, kFlags)));
#ifdef USERFAULTFD_IOC_NEW
  if (guard.get() < 0) {
    const Fd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.get() >= 0) guard = Fd(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
  }
#endif
  uffdio_api wanted{};
  wanted.api = UFFD_API;
  wanted.features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM;
  if (guard.get() < 0 || ioctl(guard.get(), UFFDIO_API, &wanted) != 0) return Fd();
  return guard;
}

bool guard_holes(void* at, uint64_t length_bytes) {
  static const Fd guard = make_hole_guard();
  if (guard.get() < 0) return false;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uffdio_register range{};
  range.range.start = reinterpret_cast<uintptr_t>(at);
  range.range.len = (length_bytes + page - 1) / page * page;
  range.mode = UFFDIO_REGISTER_MODE_MISSING;
  return ioctl(guard.get(), UFFDIO_REGISTER, &range) == 0;
}

}  // namespace

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
  guards_holes_ = guard_holes(mapped, pool_bytes);
}

Pool::~Pool() { munmap(address_, pool_bytes_); }

}  // namespace evoke
