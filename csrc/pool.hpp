// A peer's pool as the daemon sees it.
#pragma once

#include <cstdint>
#include <memory>

#include "guard.hpp"
#include "layout.hpp"
#include "memory.hpp"

namespace evoke {

// The mapping of a pool's memfd and the layout in it. Jobs share it, the last owner unmaps.
class Pool {
 public:
  // Maps fd, which may be closed afterwards. Throws std::invalid_argument when fd has fewer than
  // pool_bytes or the layout needs more, std::system_error when it can't be mapped.
  Pool(int fd, uint64_t pool_bytes, std::shared_ptr<Layout> layout);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint8_t* address() const { return address_; }
  const Layout& layout() const { return *layout_; }
  std::shared_ptr<Layout> shared_layout() const { return layout_; }
  uint64_t pool_bytes() const { return pool_bytes_; }
  // True when a page that the peer never touched, or punched out, is a fault of its job. Otherwise
  // a copy brings such a page in, and it counts as this process's memory.
  bool guards_holes() const { return guards_holes_; }
  PeerMemory memory() const { return {address_, pool_bytes_}; }

 private:
  uint8_t* address_;
  uint64_t pool_bytes_;
  bool guards_holes_ = false;
  std::shared_ptr<Layout> layout_;
};

}  // namespace evoke
