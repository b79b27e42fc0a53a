// The files of one flash directory: lock, index, segments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../memory.hpp"
#include "format.hpp"

namespace evoke {

// Opened files. The constructor takes the directory's lock; nothing is changed before lock() has
// returned. Paths are looked up below the open directory and never through a link.
class SpillFiles {
 public:
  // Throws std::system_error: no such directory, or (EWOULDBLOCK) another daemon has it.
  explicit SpillFiles(const std::string& directory);

  // The index as it is; -1 where there is none.
  Fd open_index() const;
  Fd new_index() const;        // empty, under a name of its own
  int install_index(Fd file);  // in the place of the old one, durably; the errno

  // Opens the segment files that exist and removes those beyond `segments`. With wipe all are
  // removed first. Throws std::system_error.
  void open_segments(uint32_t segments, uint64_t segment_bytes, bool wipe, bool want_direct);
  int prepare_segment(uint32_t number);  // creates it, takes space for all of it; the errno
  int segment_fd(uint32_t number) const { return segments_[number].get(); }
  uint32_t segments() const { return static_cast<uint32_t>(segments_.size()); }
  int sync_segments() const;  // the errno
  int probe() const;          // the errno; ESTALE: the path names another directory now

  void close();  // gives the lock back

  int index_fd() const { return index_.get(); }
  bool direct() const { return direct_; }
  const std::string& directory() const { return directory_; }

 private:
  bool try_direct() const;

  const std::string directory_;
  Fd directory_fd_, lock_, index_;
  std::vector<Fd> segments_;
  uint64_t segment_bytes_ = 0;
  bool direct_ = false;
};

// All bytes at that offset, or the errno.
int write_all(int fd, const uint8_t* bytes, size_t length_bytes, uint64_t offset);
// As many bytes as there are, up to length_bytes; minus an errno.
int64_t read_all(int fd, uint8_t* bytes, size_t length_bytes, uint64_t offset);

}  // namespace evoke
