// TableView as Python sees it (_native.pyi).
#include "bind_table.hpp"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bind_arrays.hpp"
#include "table.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

// Keys from here on are looked up without the GIL; below, giving it up costs more than it gives.
constexpr size_t kKeysWithoutGil = 2048;

// The TableView of Python: close() lets look-ups in other threads finish.
class PyTableView {
 public:
  explicit PyTableView(int fd) : reader_(std::make_shared<const TableReader>(fd)) {}

  std::shared_ptr<const TableReader> get() const {
    if (reader_ == nullptr) throw py::value_error("table view: closed");
    return reader_;
  }
  void close() { reader_.reset(); }

  py::array_t<uint8_t> lookup(const py::bytes& secret, const py::bytes& keys) const {
    const auto reader = get();
    const std::span<const uint8_t> packed = checked_keys(keys);
    py::array_t<uint8_t> tiers(static_cast<py::ssize_t>(packed.size() / 32));
    uint8_t* const to = tiers.mutable_data();
    const TagSecret key = secret_of(secret);
    if (packed.size() / 32 < kKeysWithoutGil) {
      reader->lookup(key, packed, to);
    } else {
      const py::gil_scoped_release unlocked;
      reader->lookup(key, packed, to);
    }
    return tiers;
  }

  size_t leading(const py::bytes& secret, const py::bytes& keys) const {
    const auto reader = get();
    return reader->leading(secret_of(secret), checked_keys(keys));
  }

 private:
  static TagSecret secret_of(const py::bytes& secret) {
    const std::span<const uint8_t> bytes = span_of(secret);
    TagSecret value;
    if (bytes.size() != sizeof value) {
      throw py::value_error("secret: " + std::to_string(bytes.size()) + " bytes, expected 16");
    }
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  static std::span<const uint8_t> checked_keys(const py::bytes& keys) {
    const std::span<const uint8_t> packed = span_of(keys);
    if (packed.size() % 32 == 0) return packed;
    throw py::value_error("keys: " + std::to_string(packed.size()) +
                          " bytes, not a multiple of 32");
  }

  std::shared_ptr<const TableReader> reader_;
};

}  // namespace

void bind_table(py::module_& m) {
  py::class_<PyTableView>(m, "TableView")
      .def(py::init<int>(), py::arg("fd"))
      .def_property_readonly("epoch", [](const PyTableView& self) { return self.get()->epoch(); })
      .def("superseded", [](const PyTableView& self) { return self.get()->superseded(); })
      .def("lookup", &PyTableView::lookup, py::arg("secret"), py::arg("keys"))
      .def("leading", &PyTableView::leading, py::arg("secret"), py::arg("keys"))
      .def("close", &PyTableView::close);
}

}  // namespace evoke
