// The Python module evoke.core._native. Each part of the core binds itself.
#include "bindings.hpp"

PYBIND11_MODULE(_native, m) {
  m.doc() = "evoke's C++ core: it owns bytes and never decides";
  evoke::bind_hashing(m);
  evoke::bind_memory(m);
  evoke::bind_index(m);
  evoke::bind_copy(m);
}
