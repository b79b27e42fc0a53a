#include "accept_guard.hpp"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace evoke {
namespace {

// The listening socket stays readable: without a pause libzmq's thread would spin.
void say_enfile() {
  if (errno != EMFILE) return;
  const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
  nanosleep(&pause, nullptr);
  errno = ENFILE;
}

int guarded_accept(int fd, sockaddr* address, socklen_t* bytes) {
  const int got = accept(fd, address, bytes);
  if (got < 0) say_enfile();
  return got;
}

int guarded_accept4(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  const int got = accept4(fd, address, bytes, flags);
  if (got < 0) say_enfile();
  return got;
}

// What an object's dynamic section says of its relocations.
struct Dynamic {
  const char* names = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * calls = nullptr;  // DT_JMPREL
  size_t calls_bytes = 0;
  const ElfW(Rela) * data = nullptr;  // DT_RELA
  size_t data_bytes = 0;
  bool rela = false;
};

Dynamic read_dynamic(const ElfW(Dyn) * entry) {
  Dynamic found;
  for (; entry->d_tag != DT_NULL; ++entry) {
    const auto address = entry->d_un.d_ptr;  // glibc has added the load address; not all libcs do
    switch (entry->d_tag) {
      case DT_STRTAB:
        found.names = reinterpret_cast<const char*>(address);
        break;
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_JMPREL:
        found.calls = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        found.calls_bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        found.data = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_RELASZ:
        found.data_bytes = entry->d_un.d_val;
        break;
      case DT_PLTREL:
        found.rela = entry->d_un.d_val == DT_RELA;
        break;
      default:
        break;
    }
  }
  return found;
}

// What the loader made read-only when it had filled it.
struct ReadOnly {
  uintptr_t begin = 0, end = 0;
};

bool replace(uintptr_t slot, uintptr_t function, ReadOnly relro) {
  auto* place = reinterpret_cast<uintptr_t*>(slot);
  if (__atomic_load_n(place, __ATOMIC_ACQUIRE) == function) return true;
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* page = reinterpret_cast<void*>(slot & ~(page_bytes - 1));
  const bool guarded = relro.begin <= slot && slot < relro.end;
  if (guarded && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(place, function, __ATOMIC_RELEASE);
  return !guarded || mprotect(page, page_bytes, PROT_READ) == 0;
}

size_t replace_in(const Dynamic& object, const ElfW(Rela) * table, size_t table_bytes,
                  uintptr_t load_address, ReadOnly relro) {
  size_t replaced = 0;
  for (size_t i = 0; table != nullptr && i < table_bytes / sizeof(*table); ++i) {
    const auto kind = ELF64_R_TYPE(table[i].r_info);
#if defined(__x86_64__)
    if (kind != R_X86_64_JUMP_SLOT && kind != R_X86_64_GLOB_DAT) continue;
#elif defined(__aarch64__)
    if (kind != R_AARCH64_JUMP_SLOT && kind != R_AARCH64_GLOB_DAT) continue;
#else
    continue;
#endif
    const char* name = object.names + object.symbols[ELF64_R_SYM(table[i].r_info)].st_name;
    uintptr_t function = 0;
    if (std::strcmp(name, "accept") == 0) {
      function = reinterpret_cast<uintptr_t>(&guarded_accept);
    } else if (std::strcmp(name, "accept4") == 0) {
      function = reinterpret_cast<uintptr_t>(&guarded_accept4);
    } else {
      continue;
    }
    replaced += replace(load_address + table[i].r_offset, function, relro);
  }
  return replaced;
}

int visit(dl_phdr_info* object, size_t, void* count) {
  const char* file = std::strrchr(object->dlpi_name, '/');
  if (std::strstr(file ? file : object->dlpi_name, "libzmq") == nullptr) return 0;
  const uintptr_t load_address = object->dlpi_addr;
  ReadOnly relro;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr) & part = object->dlpi_phdr[i];
    if (part.p_type != PT_GNU_RELRO) continue;
    // The loader protects whole pages only: the last one may stay writable.
    const auto pages = ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
    relro = {load_address + part.p_vaddr, (load_address + part.p_vaddr + part.p_memsz) & pages};
  }
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const Dynamic dynamic = read_dynamic(
        reinterpret_cast<const ElfW(Dyn)*>(load_address + object->dlpi_phdr[i].p_vaddr));
    const auto at = reinterpret_cast<uintptr_t>(dynamic.names);
    if (!dynamic.rela || dynamic.symbols == nullptr || at < load_address) continue;
    auto& total = *static_cast<size_t*>(count);
    total += replace_in(dynamic, dynamic.calls, dynamic.calls_bytes, load_address, relro);
    total += replace_in(dynamic, dynamic.data, dynamic.data_bytes, load_address, relro);
  }
  return 0;
}

}  // namespace

size_t guard_accept() {
  size_t count = 0;
  dl_iterate_phdr(visit, &count);
  return count;
}

}  // namespace evoke
