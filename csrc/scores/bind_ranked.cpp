// Ranked for Python: its constructor, its columns, its ranks.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "../bind_arrays.hpp"
#include "ranked.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

template <typename T, typename Of>
py::array_t<T> column(const std::vector<uint32_t>& ids, Of of) {
  py::array_t<T> values(static_cast<py::ssize_t>(ids.size()));
  T* out = values.mutable_data();
  for (size_t i = 0; i < ids.size(); ++i) out[i] = of(ids[i]);
  return values;
}

py::dict columns(const Ranked& order, const Identities& known, const Scores& scores, double clock) {
  const std::vector<uint32_t> ids = order.resident_ids();
  py::dict result;
  result["ids"] = column<uint32_t>(ids, [](uint32_t id) { return id; });
  result["log_score"] =
      column<double>(ids, [&](uint32_t id) { return scores.log_score(id, clock); });
  result["idle"] = column<double>(ids, [&](uint32_t id) { return clock - known.at_clock[id]; });
  result["count"] = column<uint16_t>(ids, [&](uint32_t id) { return known.count[id]; });
  result["role"] = column<uint8_t>(ids, [&](uint32_t id) { return known.role[id]; });
  result["priority"] = column<uint8_t>(ids, [&](uint32_t id) { return known.priority[id]; });
  result["tail"] = column<bool>(ids, [&](uint32_t id) { return order.tail(id); });
  return result;
}

}  // namespace

void bind_ranked(py::module_& m) {
  py::class_<Ranked, Order>(m, "Ranked")
      .def(py::init<Identities*, uint32_t, Ranked::OnTick>(), py::arg("identities"),
           py::arg("every") = 1, py::arg("on_tick") = nullptr, py::keep_alive<1, 2>())
      .def("columns", &columns, py::arg("known"), py::arg("scores"), py::arg("clock"))
      .def(
          "set_ranks",
          [](Ranked& order, const Exact<uint32_t>& ids, const Exact<double>& ranks) {
            order.set_ranks({ids.data(), static_cast<size_t>(ids.size())},
                            {ranks.data(), static_cast<size_t>(ranks.size())});
          },
          py::arg("ids"), py::arg("ranks"));
}

}  // namespace evoke
