// Shared by the binding files, the only ones that know Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

namespace evoke {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

void bind_hashing(pybind11::module_& m);  // bind_hashing.cpp: sha256, chain_keys, xxh3_64
void bind_memory(pybind11::module_& m);   // bind_memory.cpp: Arena, memfds
void bind_index(pybind11::module_& m);    // bind_index.cpp: Index, TableView
void bind_copy(pybind11::module_& m);     // bind_copy.cpp: Layout, Pool, FencePage, CopyEngine

}  // namespace evoke
