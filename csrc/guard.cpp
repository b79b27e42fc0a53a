#include "guard.hpp"

#include <setjmp.h>
#include <signal.h>

#include <cassert>
#include <cstdint>
#include <mutex>
#include <system_error>

namespace evoke {
namespace {

struct Guard {
  sigjmp_buf escape;
  PeerMemory ranges[2];
};

// initial-exec: read in a signal handler, where the usual lazy allocation is not allowed.
__attribute__((tls_model("initial-exec"))) thread_local Guard* t_guard = nullptr;
__attribute__((tls_model("initial-exec"))) thread_local bool t_passing_on = false;

struct sigaction g_previous[2];

bool is_in(const PeerMemory& memory, const void* address) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.address);
  return reinterpret_cast<uintptr_t>(address) - begin < memory.bytes;
}

// The jump left the handler without restoring the mask (saving it would cost a system call for
// each block), and tools such as ThreadSanitizer block more than we ask for.
void unblock_faults() {
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGBUS);
  sigaddset(&faults, SIGSEGV);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

// The faulting instruction runs again after this and meets the default action.
void restore_default(int number) {
  struct sigaction plain{};
  plain.sa_handler = SIG_DFL;
  sigaction(number, &plain, nullptr);
}

void pass_on(int number, siginfo_t* info, void* context) {
  const struct sigaction& previous = g_previous[number == SIGBUS ? 0 : 1];
  const bool has_handler = (previous.sa_flags & SA_SIGINFO) != 0 ||
                           (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
  // Handlers that raise again after they restored what was before them come back here.
  if (!has_handler || t_passing_on) {
    restore_default(number);
    if (info->si_code <= 0) raise(number);  // sent, not a fault: nothing would run again
    return;
  }
  t_passing_on = true;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else {
    previous.sa_handler(number);
  }
  t_passing_on = false;
}

void on_fault(int number, siginfo_t* info, void* context) {
  Guard* guard = t_guard;
  if (guard != nullptr && info->si_code > 0 &&
      (is_in(guard->ranges[0], info->si_addr) || is_in(guard->ranges[1], info->si_addr))) {
    siglongjmp(guard->escape, 1);
  }
  pass_on(number, info, context);
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  // SA_NODEFER: handlers we pass a fault on to may raise it again.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &g_previous[0]) != 0 ||
      sigaction(SIGSEGV, &action, &g_previous[1]) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigaction");
  }
}

}  // namespace

void install_fault_guard() {
  static std::once_flag once;
  std::call_once(once, install);
}

bool run_guarded(PeerMemory first, PeerMemory second, void (*work)(void*), void* argument) {
  assert(t_guard == nullptr);
  Guard guard;
  guard.ranges[0] = first;
  guard.ranges[1] = second;
  if (sigsetjmp(guard.escape, 0) != 0) {
    t_guard = nullptr;
    unblock_faults();
    return false;
  }
  t_guard = &guard;
  work(argument);
  t_guard = nullptr;
  return true;
}

}  // namespace evoke
