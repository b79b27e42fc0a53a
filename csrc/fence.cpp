#include "fence.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace evoke {
namespace {

constexpr uint32_t kCancelled = 1;
constexpr uint32_t kOneCopy = 2;
constexpr int64_t kFirstSleepNs = 20000;
constexpr int64_t kLongestSleepNs = 1000000;

std::atomic_ref<uint32_t> at(uint32_t* words, unsigned word) {
  assert(word < kFenceWords);
  return std::atomic_ref<uint32_t>(words[word]);
}

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

}  // namespace

int FencePage::make() {
  const int fd = memfd_create("evoke-fence", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  if (ftruncate(fd, kFencePageBytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(fd);
    throw std::system_error(error, std::generic_category(), "fence page");
  }
  return fd;
}

FencePage::FencePage(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || fcntl(fd, F_GET_SEALS) < 0) {
    throw std::invalid_argument("fd: " + std::to_string(fd) + " is not a memfd");
  }
  if (status.st_size < static_cast<off_t>(kFencePageBytes)) {
    throw std::invalid_argument("fd: " + std::to_string(status.st_size) + " bytes, not " +
                                std::to_string(kFencePageBytes));
  }
  void* mapped = mmap(nullptr, kFencePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  words_ = static_cast<uint32_t*>(mapped);
}

FencePage::~FencePage() { munmap(words_, kFencePageBytes); }

bool FencePage::arm(unsigned word) {
  uint32_t old = at(words_, word).load();
  do {
    if (old >= kOneCopy) return false;
  } while (!at(words_, word).compare_exchange_weak(old, 0));
  return true;
}

bool FencePage::cancel(unsigned word, int wait_ms) {
  const int64_t until = now_ns() + int64_t{std::max(wait_ms, 0)} * 1000000;
  uint32_t old = at(words_, word).fetch_or(kCancelled);
  int64_t sleep_ns = kFirstSleepNs;
  while (old >= kOneCopy) {
    const int64_t left = until - now_ns();
    if (left <= 0) return false;
    const timespec pause{0, std::min(sleep_ns, left)};
    nanosleep(&pause, nullptr);  // an early return only looks earlier
    sleep_ns = std::min(2 * sleep_ns, kLongestSleepNs);
    old = at(words_, word).load();
  }
  return true;
}

bool FencePage::enter(unsigned word) {
  // Not needed for the protocol: a page that is gone faults here, where nothing is locked.
  if ((at(words_, word).load(std::memory_order_relaxed) & kCancelled) != 0) return false;
  if ((at(words_, word).fetch_add(kOneCopy) & kCancelled) == 0) return true;
  leave(word);
  return false;
}

void FencePage::leave(unsigned word) { at(words_, word).fetch_sub(kOneCopy); }

}  // namespace evoke
