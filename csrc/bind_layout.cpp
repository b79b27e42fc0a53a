// Layout and the checksum as Python sees them (_native.pyi).
#include <string>
#include <utility>

#include "bind_arrays.hpp"
#include "blocks.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

py::sequence to_sequence(const std::string& name, const py::handle& value, size_t least,
                         size_t most) {
  if (!py::isinstance<py::sequence>(value)) throw py::value_error(name + ": not a sequence");
  auto sequence = py::reinterpret_borrow<py::sequence>(value);
  if (sequence.size() < least || sequence.size() > most) {
    throw py::value_error(name + ": " + std::to_string(sequence.size()) + " entries, not " +
                          std::to_string(least) + " to " + std::to_string(most));
  }
  return sequence;
}

Segment to_segment(const std::string& name, const py::handle& value) {
  const py::sequence fields = to_sequence(name, value, 4, 4);
  Segment segment;
  segment.base = to_number(name + ": base", fields[0], true);
  segment.slot_stride = to_number(name + ": slot_stride", fields[1], true);
  segment.item_bytes = static_cast<uint64_t>(to_number(name + ": item_bytes", fields[3], false));
  const py::sequence dims = to_sequence(name + ": dims", fields[2], 0, kMaxDims);
  for (size_t d = 0; d < dims.size(); d++) {
    const std::string at = name + ": dims[" + std::to_string(d) + "]";
    const py::sequence dim = to_sequence(at, dims[d], 2, 2);
    segment.dims.push_back({static_cast<uint64_t>(to_number(at + ": count", dim[0], false)),
                            to_number(at + ": stride", dim[1], true)});
  }
  return segment;
}

std::shared_ptr<Layout> make_layout(const py::object& segments, const py::object& slots,
                                    const py::object& pool_bytes) {
  const py::sequence list = to_sequence("segments", segments, 1, kMaxSegments);
  std::vector<Segment> parsed;
  for (size_t n = 0; n < list.size(); n++) {
    parsed.push_back(to_segment("segments[" + std::to_string(n) + "]", list[n]));
  }
  const auto slot_count = static_cast<uint64_t>(to_number("slots", slots, false));
  const auto bytes = static_cast<uint64_t>(to_number("pool_bytes", pool_bytes, false));
  const py::gil_scoped_release unlocked;
  return std::make_shared<Layout>(parsed, slot_count, bytes);
}

// Layout.gather and Layout.scatter.
Exact<uint64_t> copy_here(const Layout& layout, bool is_gather, uintptr_t pool_address,
                          const Exact<uint32_t>& slot_array, const Buffer& buffer) {
  const std::vector<uint32_t> slots = to_vector("slots", slot_array);
  check_slots(slots, layout.slots());
  if (!is_gather) check_distinct(slots);
  if (buffer.size() != slots.size() * layout.block_bytes()) {
    throw py::value_error(std::string(is_gather ? "out: " : "source: ") +
                          std::to_string(buffer.size()) + " bytes for " +
                          std::to_string(slots.size()) + " blocks of " +
                          std::to_string(layout.block_bytes()));
  }
  std::vector<uint64_t> sums(slots.size());
  {
    const py::gil_scoped_release unlocked;
    auto* pool = reinterpret_cast<uint8_t*>(pool_address);
    for (size_t i = 0; i < slots.size(); i++) {
      uint8_t* stored = buffer.bytes() + i * layout.block_bytes();
      sums[i] = is_gather ? gather_block(kernel(), layout, pool, slots[i], stored)
                          : scatter_block(kernel(), layout, pool, slots[i], stored);
    }
  }
  return to_array(sums);
}

void bind_sums(py::module_& m) {
  m.def(
      "xxh3_64",
      [](const py::object& data) {
        const Buffer buffer("data", data, false);
        const py::gil_scoped_release unlocked;
        return xxh3_64(buffer.bytes(), buffer.size());
      },
      py::arg("data"));
  m.def("kernel_name", [] { return kernel().name; });
  m.def(
      "use_kernel",
      [](const std::string& name) {
        if (!use_kernel(name)) throw py::value_error("name: this CPU has no kernel '" + name + "'");
      },
      py::arg("name"));
  m.def(
      "self_test",
      [](int milliseconds) {
        if (milliseconds < 1 || milliseconds > 10000) {
          throw py::value_error("milliseconds is " + std::to_string(milliseconds) +
                                ", not 1 to 10000");
        }
        std::vector<std::pair<std::string, double>> rates;
        {
          const py::gil_scoped_release unlocked;
          rates = self_test(milliseconds);
        }
        py::dict out;
        for (const auto& [name, rate] : rates) out[py::str(name)] = rate;
        return out;
      },
      py::arg("milliseconds") = 20);
}

}  // namespace

void bind_layout(py::module_& m) {
  bind_sums(m);
  py::class_<Layout, std::shared_ptr<Layout>>(m, "Layout")
      .def(py::init(&make_layout), py::arg("segments"), py::arg("slots"), py::arg("pool_bytes"))
      .def_property_readonly("block_bytes", &Layout::block_bytes)
      .def_property_readonly("slots", &Layout::slots)
      .def_property_readonly("runs_per_block", &Layout::runs_per_block)
      .def_property_readonly("run_bytes", &Layout::run_bytes)
      .def(
          "gather",
          [](const Layout& layout, uintptr_t pool_address, const Exact<uint32_t>& slots,
             const py::object& out) {
            return copy_here(layout, true, pool_address, slots, Buffer("out", out, true));
          },
          py::arg("pool_address"), py::arg("slots"), py::arg("out"))
      .def(
          "scatter",
          [](const Layout& layout, uintptr_t pool_address, const Exact<uint32_t>& slots,
             const py::object& source) {
            return copy_here(layout, false, pool_address, slots, Buffer("source", source, false));
          },
          py::arg("pool_address"), py::arg("slots"), py::arg("source"));
}

}  // namespace evoke
