// The Python class evoke.core._scores.ReturnIndex.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "return_index.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

constexpr std::array<const char*, kSets> kSetNames = {"age", "gap", "count-new"};

ReturnRules rules_of(uint64_t capacity_bytes, const std::string& classes, double memory_requests) {
  ReturnRules rules{.capacity_bytes = capacity_bytes, .memory_requests = memory_requests};
  if (classes == "shadow") return rules;
  const auto found = std::ranges::find(kSetNames, classes);
  if (found == kSetNames.end()) {
    throw std::invalid_argument("classes: '" + classes +
                                "' is none of age, gap, count-new, shadow");
  }
  rules.choosing = false;
  rules.set = static_cast<ClassSet>(found - kSetNames.begin());
  return rules;
}

PerBin per_bin(const std::vector<double>& values, const char* name) {
  if (values.size() != kBins) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(values.size()) +
                                " numbers, not one for each of the " + std::to_string(kBins) +
                                " bins");
  }
  PerBin bins;
  std::ranges::copy(values, bins.begin());
  return bins;
}

}  // namespace

void bind_return_index(py::module_& m) {
  m.def(
      "return_chances",
      [](const std::vector<double>& returned, const std::vector<double>& survived,
         const std::vector<double>& prior, double weight) {
        const Outcomes outcomes{per_bin(returned, "returned"), per_bin(survived, "survived")};
        return return_chances(outcomes, per_bin(prior, "prior"), weight);
      },
      py::arg("returned"), py::arg("survived"), py::arg("prior"), py::arg("weight"));
  m.def(
      "hits_per_block_second",
      [](const std::vector<double>& chances) {
        return hits_per_block_second(per_bin(chances, "chances"));
      },
      py::arg("chances"));
  py::class_<ReturnIndex, Order>(m, "ReturnIndex")
      .def(py::init([](Identities* identities, uint64_t capacity_bytes, const std::string& classes,
                       double memory_requests) {
             return new ReturnIndex(identities, rules_of(capacity_bytes, classes, memory_requests));
           }),
           py::arg("identities"), py::arg("capacity_bytes"), py::arg("classes") = "shadow",
           py::arg("memory_requests") = ReturnRules{}.memory_requests, py::keep_alive<1, 2>())
      .def("resize", &ReturnIndex::resize, py::arg("capacity_bytes"))
      .def_property_readonly("cohorts",
                             [](const ReturnIndex& order) { return order.learner().cohorts(); })
      .def_property_readonly("classes", [](const ReturnIndex& order) {
        return kSetNames[static_cast<size_t>(order.set())];
      });
}

}  // namespace evoke
