#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "accept_guard.hpp"
#include "arena.hpp"
#include "bindings.hpp"
#include "memory.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

// Without forcecast: negative or fractional offsets are a TypeError, never another offset.
using Offsets = py::array_t<uint64_t, py::array::c_style>;

// MemoryError with the numbers; what() of a std::system_error has them.
[[noreturn]] void throw_memory_error(const std::system_error& error) {
  py::set_error(PyExc_MemoryError, error.what());
  throw py::error_already_set();
}

Arena::Backing backing_named(const std::string& name) {
  if (name == "auto") return Arena::Backing::kAuto;
  if (name == "hugetlb") return Arena::Backing::kHugetlb;
  if (name == "thp") return Arena::Backing::kThp;
  if (name == "4k") return Arena::Backing::k4k;
  throw py::value_error("backing: '" + name + "' is not auto, hugetlb, thp or 4k");
}

std::unique_ptr<Arena> make_arena(size_t capacity_bytes, const std::string& backing, bool lock,
                                  int node) {
  try {
    return std::make_unique<Arena>(capacity_bytes, backing_named(backing), lock, node);
  } catch (const std::system_error& error) {
    throw_memory_error(error);
  }
}

std::unique_ptr<Arena> arena_on_device(const std::string& path, size_t capacity_bytes) {
  try {
    return std::make_unique<Arena>(path, capacity_bytes);
  } catch (const std::system_error& error) {
    throw_memory_error(error);
  }
}

py::dict placement(const Arena& arena, int node) {
  const Placement found = [&] {
    const py::gil_scoped_release unlocked;
    return arena.placement(node);
  }();
  py::dict entry;
  entry["on_node_bytes"] = found.on_node_bytes;
  entry["elsewhere_bytes"] = found.elsewhere_bytes;
  entry["unknown_bytes"] = found.unknown_bytes;
  return entry;
}

py::list nodes(const std::string& sys, const std::string& proc) {
  py::list list;
  for (const NumaNode& node : numa_nodes(sys, proc)) {
    py::dict entry;
    entry["number"] = node.number;
    entry["has_cpu"] = node.has_cpu;
    entry["memory_bytes"] = node.memory_bytes;
    entry["free_bytes"] = node.free_bytes;
    entry["movable_bytes"] = node.movable_bytes;
    entry["free_huge_bytes"] = node.free_huge_bytes;
    list.append(entry);
  }
  return list;
}

void prefault(Arena& arena, size_t threads) {
  if (threads < 1 || threads > 256) {
    throw py::value_error("threads: " + std::to_string(threads) + " is not in 1..256");
  }
  try {
    const py::gil_scoped_release unlocked;
    arena.prefault(threads);
  } catch (const std::system_error& error) {
    if (error.code().value() == ECANCELED) throw py::value_error(error.what());
    throw_memory_error(error);
  }
}

void free_blocks(Arena& arena, const Offsets& offsets) {
  arena.free({offsets.data(), static_cast<size_t>(offsets.size())});
}

py::array_t<uint64_t> allocate(Arena& arena, size_t block_bytes, size_t count) {
  const std::vector<uint64_t> offsets = arena.allocate(block_bytes, count);
  return py::array_t<uint64_t>(static_cast<py::ssize_t>(offsets.size()), offsets.data());
}

py::list extents(const Arena& arena) {
  py::list list;
  for (const Arena::ExtentInfo& extent : arena.extents()) {
    py::dict entry;
    entry["offset"] = extent.offset;
    entry["bytes"] = extent.bytes;
    entry["block_bytes"] = extent.block_bytes;
    entry["blocks_used"] = extent.blocks_used;
    entry["blocks"] = extent.blocks;
    list.append(entry);
  }
  return list;
}

py::dict stats(const Arena& arena) {
  const Arena::Stats stats = arena.stats();
  py::dict entry;
  entry["capacity_bytes"] = stats.capacity_bytes;
  entry["allocated_bytes"] = stats.allocated_bytes;
  entry["extent_bytes"] = stats.extent_bytes;
  entry["free_granule_bytes"] = stats.free_granule_bytes;
  entry["largest_free_run_bytes"] = stats.largest_free_run_bytes;
  entry["wasted_bytes"] = stats.wasted_bytes;
  entry["blocks"] = stats.blocks;
  return entry;
}

int pool_memfd(size_t pool_bytes, const std::string& name, bool huge) {
  try {
    return make_pool_memfd(pool_bytes, name, huge).release();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    throw py::error_already_set();
  }
}

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<Arena>(m, "Arena")
      .def(py::init(&make_arena), py::arg("capacity_bytes"), py::arg("backing") = "auto",
           py::arg("lock") = false, py::arg("node") = kAnyNode)
      .def_static("on_device", &arena_on_device, py::arg("path"), py::arg("capacity_bytes"))
      .def("placement", &placement, py::arg("node"))
      .def_property_readonly("node", &Arena::node)
      .def("prefault", &prefault, py::arg("threads"))
      .def_property_readonly("prefaulted_bytes", &Arena::prefaulted_bytes)
      .def_property_readonly(
          "address",
          [](const Arena& arena) { return reinterpret_cast<uintptr_t>(arena.address()); })
      .def_property_readonly("capacity_bytes", &Arena::capacity_bytes)
      .def_property_readonly("backing", &Arena::backing)
      .def_property_readonly("locked", &Arena::locked)
      .def("allocate", &allocate, py::arg("block_bytes"), py::arg("count"))
      .def("free", &free_blocks, py::arg("offsets"))
      .def("extents", &extents)
      .def("can_ever_hold", &Arena::can_ever_hold, py::arg("block_bytes"))
      .def("stats", &stats)
      .def("close", &Arena::close, py::call_guard<py::gil_scoped_release>());
  m.def("numa_nodes", &nodes, py::arg("sys") = "/sys", py::arg("proc") = "/proc");
  m.def("make_pool_memfd", &pool_memfd, py::arg("pool_bytes"), py::arg("name"),
        py::arg("huge") = false);
  m.def("check_pool_memfd", &check_pool_memfd, py::arg("fd"), py::arg("pool_bytes"));
  m.def("guard_accept", &guard_accept);
  m.def("memory_available_bytes", &memory_available_bytes, py::arg("proc") = "/proc");
}

}  // namespace evoke
