// Words by which a client stops the copies of a request that it no longer waits for.
//
// Bit 0 of a word: cancelled. The rest counts the blocks being copied. A worker adds 2 before it
// looks at bit 0 and a client sets bit 0 before it looks at the count, so that one of them sees the
// other: after a cancel that saw no count, no block is or will be copied.
#pragma once

#include <cstddef>
#include <cstdint>

#include "guard.hpp"

namespace evoke {

inline constexpr unsigned kFenceWords = 64;
inline constexpr size_t kFencePageBytes = 4096;

// A mapped page. The peer may write anything into it at any time, or take it away.
class FencePage {
 public:
  // A new page's memfd, sealed SHRINK|GROW|SEAL. Throws std::system_error.
  static int make();

  // Maps fd, which may be closed afterwards. Throws std::invalid_argument when fd is not a memfd
  // of at least a page.
  explicit FencePage(int fd);
  ~FencePage();
  FencePage(const FencePage&) = delete;
  FencePage& operator=(const FencePage&) = delete;

  // Client. Resets the word; false (and no change) while a copy is active.
  bool arm(unsigned word);

  // Client. After this no block starts. True when none is being copied; waits up to wait_ms.
  bool cancel(unsigned word, int wait_ms);

  // Worker, inside run_guarded with memory(). enter: false when cancelled, else leave must follow.
  bool enter(unsigned word);
  void leave(unsigned word);

  PeerMemory memory() const { return {words_, kFencePageBytes}; }

 private:
  uint32_t* words_;
};

}  // namespace evoke
