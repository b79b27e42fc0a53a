// The Python function evoke.core._scores.simulate_thresholds.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "../bind_arrays.hpp"
#include "thresholds.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

py::dict run(const Exact<uint32_t>& ids, const Exact<uint64_t>& starts, uint32_t identities,
             double alpha, double keep, double evict, bool keep_state) {
  const Trace trace{{ids.data(), static_cast<size_t>(ids.size())},
                    {starts.data(), static_cast<size_t>(starts.size())},
                    {},
                    identities};
  ThresholdCounts counts;
  {
    const py::gil_scoped_release released;
    counts = simulate_thresholds(trace, {alpha, keep, evict, keep_state});
  }
  py::dict result;
  result["hot"] = counts.hot;
  result["cold"] = counts.cold;
  result["miss"] = counts.miss;
  result["prefix_hits"] = counts.prefix_hits;
  result["gone"] = counts.gone;
  result["resident_max"] = counts.resident_max;
  result["resident_sum"] = counts.resident_sum;
  result["resident_hot_sum"] = counts.resident_hot_sum;
  return result;
}

}  // namespace

void bind_thresholds(py::module_& m) {
  m.def("simulate_thresholds", &run, py::arg("ids"), py::arg("starts"), py::arg("identities"),
        py::arg("alpha"), py::arg("keep"), py::arg("evict"), py::arg("keep_state"));
}

}  // namespace evoke
