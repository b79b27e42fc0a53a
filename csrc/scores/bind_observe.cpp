// The Python class evoke.core._scores.SequenceSignal.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "observe.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

using Ids = py::array_t<uint32_t, py::array::c_style>;

Absent absent_of(const std::string& name) {
  if (name == "decay") return Absent::kDecay;
  if (name == "freeze") return Absent::kFreeze;
  if (name == "reset") return Absent::kReset;
  throw std::invalid_argument("absent: '" + name + "' is none of decay, freeze, reset");
}

// Half floats arrive as bytes: from a message, or from an array by its buffer.
std::span<const uint16_t> halves_of(const py::buffer_info& info) {
  if (info.ndim > 1 || (info.ndim == 1 && info.strides[0] != info.itemsize)) {
    throw std::invalid_argument("signal: not one run of bytes");
  }
  const auto size_bytes = static_cast<size_t>(info.size * info.itemsize);
  if (size_bytes % 2) {
    throw std::invalid_argument("signal: " + std::to_string(size_bytes) + " bytes are odd");
  }
  return {static_cast<const uint16_t*>(info.ptr), size_bytes / 2};
}

void report(SequenceSignal& signal, const py::buffer& masses, size_t channels, uint32_t steps,
            const py::bytes& present) {
  const py::buffer_info info = masses.request();
  const std::string_view bits = present;
  signal.report(halves_of(info), channels, steps,
                {reinterpret_cast<const uint8_t*>(bits.data()), bits.size()});
}

}  // namespace

void bind_observe(py::module_& m) {
  py::class_<SequenceSignal>(m, "SequenceSignal")
      .def(py::init([](double alpha, double knee, const std::string& absent) {
             return new SequenceSignal({alpha, knee, absent_of(absent)});
           }),
           py::arg("alpha"), py::arg("knee") = 12.0, py::arg("absent") = "freeze")
      .def("__len__", &SequenceSignal::size)
      .def(
          "assign",
          [](SequenceSignal& signal, size_t first, const Ids& ids) {
            signal.assign(first, {ids.data(), static_cast<size_t>(ids.size())});
          },
          py::arg("first"), py::arg("ids"))
      .def("report", &report, py::arg("masses"), py::arg("channels"), py::arg("steps"),
           py::arg("present") = py::bytes())
      .def_property_readonly("pending", &SequenceSignal::pending)
      .def("fold", &SequenceSignal::fold, py::arg("clock"), py::arg("elapsed"), py::arg("seq"),
           py::arg("known"), py::arg("scores"), py::arg("order").none(true) = nullptr);
}

}  // namespace evoke
