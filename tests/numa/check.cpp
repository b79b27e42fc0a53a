// The first process of a virtual machine with a memory-only NUMA node: places arenas there with the
// daemon's own code, pins them, and prints what the kernel says of it, one JSON object a line.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <system_error>

#include "arena.hpp"

namespace {

constexpr int kNode = 1;
constexpr size_t kArenaBytes = size_t{32} << 20;

void print_nodes() {
  for (const evoke::NumaNode& node : evoke::numa_nodes()) {
    printf("check: {\"what\": \"node\", \"number\": %d, \"has_cpu\": %s, \"memory_bytes\": %" PRIu64
           ", \"free_bytes\": %" PRIu64 ", \"movable_bytes\": %" PRIu64 "}\n",
           node.number, node.has_cpu ? "true" : "false", node.memory_bytes, node.free_bytes,
           node.movable_bytes);
  }
}

void print_placement(const char* what, const evoke::Arena& arena) {
  const evoke::Placement found = arena.placement(kNode);
  printf("check: {\"what\": \"%s\", \"backing\": \"%s\", \"on_node_bytes\": %" PRIu64
         ", \"elsewhere_bytes\": %" PRIu64 ", \"unknown_bytes\": %" PRIu64 "}\n",
         what, arena.backing(), found.on_node_bytes, found.elsewhere_bytes, found.unknown_bytes);
}

// A long-term pin, of the kind that CUDA host registration takes too. 0 or an errno.
int pin(const evoke::Arena& arena, int* ring) {
  std::array<char, 120> params{};
  *ring = static_cast<int>(syscall(SYS_io_uring_setup, 2, params.data()));
  if (*ring < 0) return errno;
  const iovec memory{arena.address(), arena.capacity_bytes()};
  return syscall(SYS_io_uring_register, *ring, 0, &memory, 1) == 0 ? 0 : errno;
}

void check_arena(evoke::Backing backing) {
  evoke::Arena arena(kArenaBytes, backing, true, kNode);
  arena.prefault(2);
  print_placement("touched", arena);
  int ring = -1;
  const int refused = pin(arena, &ring);
  printf("check: {\"what\": \"pin\", \"error\": %d}\n", refused);
  print_placement("pinned", arena);
  close(ring);
}

void print_refusal(const char* what, const std::function<void()>& act) {
  int error = 0;
  try {
    act();
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  printf("check: {\"what\": \"%s\", \"error\": %d}\n", what, error);
}

void mount_all() {
  for (const char* folder : {"/proc", "/sys", "/dev"}) mkdir(folder, 0755);
  mount("proc", "/proc", "proc", 0, nullptr);
  mount("sys", "/sys", "sysfs", 0, nullptr);
  mount("dev", "/dev", "devtmpfs", 0, nullptr);
}

void check() {
  print_nodes();
  check_arena(evoke::Backing::k4k);
  check_arena(evoke::Backing::kAuto);
  evoke::Arena unbound(kArenaBytes, evoke::Backing::k4k, false);
  unbound.prefault(1);
  print_placement("unbound", unbound);
  print_refusal("absent node", [] { evoke::Arena(kArenaBytes, evoke::Backing::k4k, false, 5); });
  print_refusal("too large", [] {
    evoke::Arena large(size_t{1} << 30, evoke::Backing::k4k, false, kNode);
    large.prefault(1);
  });
}

}  // namespace

int main() {
  mount_all();
  const int console = open("/dev/ttyS0", O_WRONLY);
  if (console >= 0) dup2(console, STDOUT_FILENO);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    check();
    printf("check: {\"what\": \"end\"}\n");
  } catch (const std::exception& failed) {
    printf("check: {\"what\": \"failed\", \"why\": \"%s\"}\n", failed.what());
  }
  sync();
  reboot(RB_POWER_OFF);
}
