// Keeps libzmq alive when the process is out of descriptors.
#pragma once

#include <cstddef>

namespace evoke {

// libzmq ends the process when accept() says EMFILE (src/ipc_listener.cpp of 4.3.5 allows ENFILE,
// which says the same of the whole machine, and tries again): whoever opens enough connections
// would stop the daemon. In every loaded libzmq, calls of accept and accept4 go through ours, which
// waits a millisecond and says ENFILE instead. Returns how many such calls are guarded; 0 where
// libzmq is linked in a way that has none. Idempotent.
size_t guard_accept();

}  // namespace evoke
