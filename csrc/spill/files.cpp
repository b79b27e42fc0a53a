#include "files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "io.hpp"

namespace evoke {
namespace {

constexpr char kIndexName[] = "index";
constexpr char kNewIndexName[] = "index.new";
constexpr char kProbeName[] = "probe";
constexpr char kSegmentPrefix[] = "segment-";
constexpr mode_t kMode = 0600;

std::string segment_name(uint32_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%05u", kSegmentPrefix, number);
  return name;
}

Fd open_below(const Fd& directory, const char* name, int flags) {
  return Fd(openat(directory.get(), name, flags | O_CLOEXEC | O_NOFOLLOW, kMode));
}

// Numbers of the segment files that are there.
std::vector<uint32_t> segment_files(const Fd& directory) {
  std::vector<uint32_t> numbers;
  Fd again(openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* entries = fdopendir(again.get());
  if (entries == nullptr) throw_system_error(errno, "flash directory");
  again.release();
  while (const dirent* entry = readdir(entries)) {
    const std::string name = entry->d_name;
    const size_t prefix = sizeof kSegmentPrefix - 1;
    if (name.size() < prefix + 5 || name.compare(0, prefix, kSegmentPrefix) != 0) continue;
    const unsigned long number = std::strtoul(name.c_str() + prefix, nullptr, 10);
    if (number <= UINT32_MAX && name == segment_name(static_cast<uint32_t>(number))) {
      numbers.push_back(static_cast<uint32_t>(number));
    }
  }
  closedir(entries);
  return numbers;
}

}  // namespace

int write_all(int fd, const uint8_t* bytes, size_t length_bytes, uint64_t offset) {
  while (length_bytes > 0) {
    const ssize_t moved = pwrite(fd, bytes, length_bytes, static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    bytes += moved;
    offset += static_cast<uint64_t>(moved);
    length_bytes -= static_cast<size_t>(moved);
  }
  return 0;
}

int64_t read_all(int fd, uint8_t* bytes, size_t length_bytes, uint64_t offset) {
  size_t done = 0;
  while (done < length_bytes) {
    const ssize_t moved =
        pread(fd, bytes + done, length_bytes - done, static_cast<off_t>(offset + done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -errno;
    if (moved == 0) break;
    done += static_cast<size_t>(moved);
  }
  return static_cast<int64_t>(done);
}

SpillFiles::SpillFiles(const std::string& directory) : directory_(directory) {
  directory_fd_ = Fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory_fd_.get() < 0) throw_system_error(errno, "flash directory " + directory);
  lock_ = open_below(directory_fd_, "lock", O_RDWR | O_CREAT);
  if (lock_.get() < 0) throw_system_error(errno, "flash directory " + directory + ": lock");
  char pid[24] = {};
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    read_all(lock_.get(), reinterpret_cast<uint8_t*>(pid), sizeof pid - 1, 0);
    throw_system_error(error, "flash directory " + directory + " is in use by process " +
                                  std::to_string(std::strtoul(pid, nullptr, 10)));
  }
  std::snprintf(pid, sizeof pid, "%d\n", getpid());
  // The number is for people; the lock itself does not depend on it.
  if (ftruncate(lock_.get(), 0) == 0) {
    write_all(lock_.get(), reinterpret_cast<const uint8_t*>(pid), std::strlen(pid), 0);
  }
}

Fd SpillFiles::open_index() const {
  Fd file = open_below(directory_fd_, kIndexName, O_RDONLY);
  if (file.get() < 0 && errno != ENOENT) throw_system_error(errno, directory_ + ": index");
  return file;
}

Fd SpillFiles::new_index() const {
  return open_below(directory_fd_, kNewIndexName, O_RDWR | O_CREAT | O_TRUNC);
}

int SpillFiles::install_index(Fd file) {
  const int directory = directory_fd_.get();
  if (fdatasync(file.get()) != 0) return errno;
  if (renameat(directory, kNewIndexName, directory, kIndexName) != 0) return errno;
  index_ = std::move(file);
  return fsync(directory) == 0 ? 0 : errno;
}

bool SpillFiles::try_direct() const {
  Fd file = open_below(directory_fd_, kProbeName, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT);
  const Pages page = make_pages(kPageBytes);
  std::memset(page.get(), 0, kPageBytes);
  const bool works = file.get() >= 0 && write_all(file.get(), page.get(), kPageBytes, 0) == 0 &&
                     read_all(file.get(), page.get(), kPageBytes, 0) == kPageBytes;
  unlinkat(directory_fd_.get(), kProbeName, 0);
  return works;
}

void SpillFiles::open_segments(uint32_t segments, uint64_t segment_bytes, bool wipe,
                               bool want_direct) {
  segment_bytes_ = segment_bytes;
  direct_ = want_direct && try_direct();
  segments_.resize(segments);
  for (const uint32_t number : segment_files(directory_fd_)) {
    const std::string name = segment_name(number);
    if (wipe || number >= segments) {
      if (unlinkat(directory_fd_.get(), name.c_str(), 0) != 0) {
        throw_system_error(errno, directory_ + "/" + name);
      }
      continue;
    }
    segments_[number] = open_below(directory_fd_, name.c_str(), O_RDWR | (direct_ ? O_DIRECT : 0));
    if (segments_[number].get() < 0) throw_system_error(errno, directory_ + "/" + name);
  }
}

int SpillFiles::prepare_segment(uint32_t number) {
  if (segments_[number].get() < 0) {
    Fd file = open_below(directory_fd_, segment_name(number).c_str(),
                         O_RDWR | O_CREAT | (direct_ ? O_DIRECT : 0));
    if (file.get() < 0) return errno;
    segments_[number] = std::move(file);
  }
  const int fd = segments_[number].get();
  struct stat status{};
  if (fstat(fd, &status) != 0) return errno;
  const auto bytes = static_cast<off_t>(segment_bytes_);
  if (status.st_size > bytes && ftruncate(fd, bytes) != 0) return errno;
  if (fallocate(fd, 0, 0, bytes) == 0) return 0;
  if (errno != EOPNOTSUPP) return errno;
  return ftruncate(fd, bytes) == 0 ? 0 : errno;  // the cap holds, but space may run out later
}

int SpillFiles::sync_segments() const {
  for (const Fd& segment : segments_) {
    if (segment.get() >= 0 && fdatasync(segment.get()) != 0) return errno;
  }
  return 0;
}

void SpillFiles::close() {
  segments_.clear();
  index_ = Fd();
  lock_ = Fd();
}

int SpillFiles::probe() const {
  struct stat named{};
  struct stat opened{};
  if (stat(directory_.c_str(), &named) != 0 || fstat(directory_fd_.get(), &opened) != 0) {
    return errno;
  }
  if (named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) return ESTALE;
  const Fd file = open_below(directory_fd_, kProbeName, O_RDWR | O_CREAT | O_TRUNC);
  if (file.get() < 0) return errno;
  const std::vector<uint8_t> page(kPageBytes, 0x5A);
  int error = write_all(file.get(), page.data(), page.size(), 0);
  if (error == 0 && fdatasync(file.get()) != 0) error = errno;
  if (unlinkat(directory_fd_.get(), kProbeName, 0) != 0 && error == 0) error = errno;
  return error;
}

}  // namespace evoke
