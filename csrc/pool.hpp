// A peer's pool as the daemon sees it.
#pragma once

#include <cstdint>
#include <memory>

#include "guard.hpp"
#include "layout.hpp"

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
  PeerMemory memory() const { return {address_, pool_bytes_}; }

 private:
  uint8_t* address_;
  uint64_t pool_bytes_;
  std::shared_ptr<Layout> layout_;
};

}  // namespace evoke
