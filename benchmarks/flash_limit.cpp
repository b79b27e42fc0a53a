// What a file can take and give with direct I/O and nothing else: the yardstick of flash.py.
// usage: flash_limit FILE FILE_BYTES BLOCK_BYTES DEPTH; then per line of standard input
// "read|write threads|io_uring SECONDS" one line of JSON. BLOCK_BYTES: a multiple of 4096.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../csrc/spill/ring.hpp"

namespace {

using evoke::IoMemory;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Setup {
  int fd;
  uint64_t places;
  size_t block_bytes;
  unsigned depth;
  uint8_t* memory;  // depth blocks
};

uint64_t run_threads(const Setup& setup, bool is_write, double end_s) {
  std::atomic<uint64_t> blocks{0};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < setup.depth; number++) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(number + 1);
      uint8_t* memory = setup.memory + number * setup.block_bytes;
      while (seconds_of(CLOCK_MONOTONIC) < end_s) {
        const auto at = static_cast<off_t>(random() % setup.places * setup.block_bytes);
        const ssize_t moved = is_write ? pwrite(setup.fd, memory, setup.block_bytes, at)
                                       : pread(setup.fd, memory, setup.block_bytes, at);
        if (moved != static_cast<ssize_t>(setup.block_bytes)) std::abort();
        blocks++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return blocks;
}

uint64_t run_ring(const Setup& setup, bool is_write, double end_s) {
  evoke::Ring ring(64);
  const IoMemory memory{setup.memory, setup.depth * setup.block_bytes};
  if (!ring.register_buffers({&memory, 1})) std::abort();
  std::mt19937_64 random(7);
  const auto request = [&](unsigned number) {
    io_uring_sqe& entry = ring.add(number);
    entry.opcode = is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    entry.fd = setup.fd;
    entry.off = random() % setup.places * setup.block_bytes;
    entry.addr = reinterpret_cast<uintptr_t>(setup.memory + number * setup.block_bytes);
    entry.len = static_cast<uint32_t>(setup.block_bytes);
  };
  for (unsigned number = 0; number < setup.depth; number++) request(number);
  uint64_t blocks = 0;
  for (unsigned active = setup.depth; active > 0;) {
    ring.submit(1);
    for (evoke::RingResult result{}; ring.take(&result);) {
      if (result.result != static_cast<int>(setup.block_bytes)) std::abort();
      blocks++;
      active--;
      if (seconds_of(CLOCK_MONOTONIC) >= end_s) continue;
      request(static_cast<unsigned>(result.tag));
      active++;
    }
  }
  return blocks;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const uint64_t file_bytes = std::strtoull(argv[2], nullptr, 10);
  Setup setup{open(argv[1], O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600), 0,
              std::strtoull(argv[3], nullptr, 10),
              static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10)), nullptr};
  if (setup.fd < 0) return 1;
  setup.places = file_bytes / setup.block_bytes;
  const size_t bytes = setup.depth * setup.block_bytes;
  setup.memory = static_cast<uint8_t*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::mt19937_64 random(3);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(setup.memory + at, &word, sizeof word);
  }
  for (uint64_t place = 0; place < setup.places; place++) {  // no unwritten extents
    const auto at = static_cast<off_t>(place * setup.block_bytes);
    if (pwrite(setup.fd, setup.memory, setup.block_bytes, at) < 0) return 1;
  }
  std::puts("ready");
  std::fflush(stdout);
  std::string verb;
  std::string engine;
  for (double seconds = 0; std::cin >> verb >> engine >> seconds;) {
    const double cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    const double began_s = seconds_of(CLOCK_MONOTONIC);
    const double end_s = began_s + seconds;
    const uint64_t blocks = engine == "threads" ? run_threads(setup, verb == "write", end_s)
                                                : run_ring(setup, verb == "write", end_s);
    const double gb = static_cast<double>(blocks * setup.block_bytes) / 1e9;
    std::printf("{\"gbps\": %.6g, \"cpu_s_per_gb\": %.6g}\n",
                gb / (seconds_of(CLOCK_MONOTONIC) - began_s),
                (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s) / gb);
    std::fflush(stdout);
  }
  return 0;
}
