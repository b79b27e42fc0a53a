// Faults in memory that another process controls (truncated, punched, unmapped) as an answer.
#pragma once

#include <cstddef>

namespace evoke {

// Memory whose faults are the peer's. An empty range (bytes 0) matches nothing.
struct PeerMemory {
  const void* address;
  size_t bytes;
};

// Installs the SIGBUS and SIGSEGV handlers of this process, once. A fault that is not a guarded
// one goes to the handler that was there before (or ends the process, as without us).
void install_fault_guard();

// Runs work(argument). False when it touched a bad page of one of the two ranges: it then ended at
// that instruction, without running destructors, so it must own nothing.
bool run_guarded(PeerMemory first, PeerMemory second, void (*work)(void*), void* argument);

// The same for a callable.
template <typename Work>
bool run_guarded(PeerMemory first, PeerMemory second, Work& work) {
  return run_guarded(
      first, second, [](void* callable) { (*static_cast<Work*>(callable))(); }, &work);
}

}  // namespace evoke
