// What this machine can copy: an AVX2 non-temporal loop and libc's memcpy, no checksum, no product
// code. A yardstick for bench_copy.py, which keeps one of these running and asks it for one
// measurement at a time, so that both see the same moments of a busy machine.
//
//   copy_limit MIB [hugetlb]     memory of each side, in MiB; pool side in a hugetlb memfd
// Each line on stdin: KERNEL DIRECTION RUN C0 S0 C1 S1 C2 S2 SLOT_STRIDE SLOTS THREADS BLOCKS
//   KERNEL avx_nt | memcpy; DIRECTION gather | scatter; runs of RUN bytes in three nested
//   dimensions of count C and stride S (bytes). Each of THREADS copies BLOCKS random slots.
// Each answer is a line of JSON: bytes, wall_s, cpu_s (of all threads).
#include <immintrin.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

struct Shape {
  std::string kernel, direction;
  size_t run, count[3], stride[3], slot_stride, slots;
  size_t block() const { return run * count[0] * count[1] * count[2]; }
};

static double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

__attribute__((target("avx2"))) static void avx_nt(char* target, const char* source, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 128) {
    const auto* from = reinterpret_cast<const __m256i*>(source + at);
    auto* to = reinterpret_cast<__m256i*>(target + at);
    const __m256i a = _mm256_load_si256(from), b = _mm256_load_si256(from + 1);
    const __m256i c = _mm256_load_si256(from + 2), d = _mm256_load_si256(from + 3);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
    _mm256_stream_si256(to + 2, c);
    _mm256_stream_si256(to + 3, d);
  }
}

static char* map(size_t bytes, bool hugetlb) {
  const int fd = hugetlb ? memfd_create("copy-limit", MFD_CLOEXEC | MFD_HUGETLB) : -1;
  const int flags = hugetlb ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  if (hugetlb && (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)) std::perror("memfd");
  void* at = mmap(nullptr, bytes + (hugetlb ? 0 : 2 << 20), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (at == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  const auto aligned =
      (reinterpret_cast<uintptr_t>(at) + (2 << 20) - 1) & ~uintptr_t{(2 << 20) - 1};
  if (!hugetlb) madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return static_cast<char*>(std::memset(reinterpret_cast<void*>(aligned), 1, bytes));
}

static void copy_block(const Shape& shape, char* slot, char* stored) {
  const bool gather = shape.direction == "gather", nt = shape.kernel == "avx_nt";
  for (size_t i = 0; i < shape.count[0]; i++)
    for (size_t j = 0; j < shape.count[1]; j++)
      for (size_t k = 0; k < shape.count[2]; k++, stored += shape.run) {
        char* run = slot + i * shape.stride[0] + j * shape.stride[1] + k * shape.stride[2];
        char *to = gather ? stored : run, *from = gather ? run : stored;
        nt ? avx_nt(to, from, shape.run) : static_cast<void>(std::memcpy(to, from, shape.run));
      }
  if (nt) _mm_sfence();
}

int main(int argc, char** argv) {
  const size_t bytes = std::strtoul(argc > 1 ? argv[1] : "640", nullptr, 10) << 20;
  char* pool = map(bytes, argc > 2 && std::string(argv[2]) == "hugetlb");
  char* arena = map(bytes, false);
  Shape s;
  size_t threads, blocks;
  while (std::cin >> s.kernel >> s.direction >> s.run >> s.count[0] >> s.stride[0] >> s.count[1] >>
         s.stride[1] >> s.count[2] >> s.stride[2] >> s.slot_stride >> s.slots >> threads >>
         blocks) {
    std::vector<double> cpu(threads);
    std::vector<std::thread> workers;
    const double began = seconds(CLOCK_MONOTONIC);
    for (size_t t = 0; t < threads; t++)
      workers.emplace_back([&, t] {
        std::mt19937_64 random(t + 7);
        const double cpu_began = seconds(CLOCK_THREAD_CPUTIME_ID);
        for (size_t b = 0; b < blocks; b++)
          copy_block(s, pool + random() % s.slots * s.slot_stride,
                     arena + random() % (bytes / s.block()) * s.block());
        cpu[t] = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
      });
    for (auto& worker : workers) worker.join();
    double cpu_s = 0;
    for (const double c : cpu) cpu_s += c;
    std::printf("{\"bytes\": %zu, \"wall_s\": %.9f, \"cpu_s\": %.9f}\n",
                threads * blocks * s.block(), seconds(CLOCK_MONOTONIC) - began, cpu_s);
    std::fflush(stdout);
  }
}
