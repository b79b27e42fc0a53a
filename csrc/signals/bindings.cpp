// The Python module evoke.core._signals.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>

#include "reducer.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

using Weights = py::array_t<float, py::array::c_style | py::array::forcecast>;

Fold fold_of(const std::string& name) {
  if (name == "mean") return Fold::kMean;
  if (name == "max") return Fold::kMax;
  if (name == "largest") return Fold::kLargest;
  throw std::invalid_argument("fold: '" + name + "' is none of mean, max, largest");
}

Reducer* make(size_t layers, size_t heads, size_t block_tokens,
              const std::vector<std::tuple<std::string, size_t, Weights>>& channels) {
  std::vector<Channel> plan;
  for (const auto& [fold, count, weights] : channels) {
    plan.push_back({fold_of(fold), count,
                    std::vector<float>(weights.data(), weights.data() + weights.size())});
  }
  return new Reducer(layers, heads, block_tokens, std::move(plan));
}

void add(Reducer& reducer, size_t layer, const py::array& weights) {
  const auto dims = static_cast<size_t>(weights.ndim());
  if (dims != 2 && dims != 3) {
    throw std::invalid_argument("weights: " + std::to_string(dims) +
                                " dimensions, expected heads x tokens or heads x rows x tokens");
  }
  const char kind = weights.dtype().kind();
  const auto item = weights.itemsize();
  if (kind != 'f' || (item != 2 && item != 4) || weights.dtype().byteorder() == '>') {
    throw std::invalid_argument("weights: neither float16 nor float32");
  }
  const LayerWeights seen{static_cast<const char*>(weights.data()),
                          item == 2 ? Element::kHalf : Element::kFloat,
                          static_cast<size_t>(weights.shape(0)),
                          dims == 3 ? static_cast<size_t>(weights.shape(1)) : 1,
                          static_cast<size_t>(weights.shape(weights.ndim() - 1)),
                          weights.strides(0),
                          dims == 3 ? weights.strides(1) : 0,
                          weights.strides(weights.ndim() - 1)};
  const py::gil_scoped_release released;
  reducer.add(layer, seen);
}

py::array take(Reducer& reducer) {
  const std::vector<uint16_t> halves = reducer.take();
  const auto channels = static_cast<py::ssize_t>(reducer.channels());
  py::array result(py::dtype("float16"),
                   {channels, static_cast<py::ssize_t>(halves.size()) / channels});
  std::memcpy(result.mutable_data(), halves.data(), halves.size() * sizeof(uint16_t));
  return result;
}

}  // namespace
}  // namespace evoke

PYBIND11_MODULE(_signals, m) {
  using namespace evoke;
  m.doc() = "reductions of attention weights";
  py::class_<Reducer>(m, "Reducer")
      .def(py::init(&make), py::arg("layers"), py::arg("heads"), py::arg("block_tokens"),
           py::arg("channels"))
      .def("add", &add, py::arg("layer"), py::arg("weights"))
      .def("take", &take)
      .def_property_readonly("blocks", &Reducer::blocks);
}
