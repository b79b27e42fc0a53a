// The Python module evoke.core._scores.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <stdexcept>

#include "../bind_arrays.hpp"
#include "clairvoyant.hpp"
#include "orders.hpp"
#include "product.hpp"
#include "relevance.hpp"
#include "simulate.hpp"

namespace py = pybind11;

namespace evoke {

void bind_identity_steps(py::class_<Identities>& identities);
void bind_observe(py::module_& m);
void bind_order_steps(py::class_<Order>& order);
void bind_ranked(py::module_& m);
void bind_ranker(py::module_& m);
void bind_return_index(py::module_& m);
void bind_thresholds(py::module_& m);

namespace {

py::dict run(const Exact<uint32_t>& ids, const Exact<uint64_t>& starts, const Exact<double>& now_s,
             uint32_t identities, uint64_t capacity_blocks, bool tail_first,
             const std::string& clock, bool keep_state, bool chains, bool scored, Identities& known,
             Scores& scores, Order& order, Victims* victims) {
  Rules rules{.capacity_blocks = capacity_blocks,
              .touch = tail_first ? Touch::kTailFirst : Touch::kList,
              .clock = clock == "access"   ? Clock::kAccess
                       : clock == "second" ? Clock::kSecond
                                           : Clock::kRequest,
              .keep_state = keep_state,
              .chains = chains,
              .scored = scored};
  const Trace trace{span_of(ids), span_of(starts), span_of(now_s), identities};
  Counts counts;
  {
    const py::gil_scoped_release released;
    counts = simulate(trace, rules, &known, &scores, &order, victims);
  }
  py::dict result;
  result["accesses"] = counts.accesses;
  result["hits"] = counts.hits;
  result["prefix_hits"] = counts.prefix_hits;
  result["evictions"] = counts.evictions;
  return result;
}

py::array_t<double> log_scores(const Scores& scores, const Exact<uint32_t>& ids, double clock) {
  py::array_t<double> result(ids.size());
  double* values = result.mutable_data();
  for (const uint32_t id : span_of(ids)) {
    if (id >= scores.identities()) {
      throw std::invalid_argument("ids: " + std::to_string(id) + " is not known");
    }
    *values++ = scores.log_score(id, clock);
  }
  return result;
}

void touch(Scores& scores, uint32_t id, double signal, double clock, uint32_t seq) {
  if (id >= scores.identities()) {
    throw std::invalid_argument("id: " + std::to_string(id) + " is not known");
  }
  if (!(signal > 0) || std::isinf(signal)) {
    throw std::invalid_argument("signal: " + std::to_string(signal) + " is not a number above 0");
  }
  scores.touch(id, signal, clock, seq);
}

void bind_relevance(py::module_& m) {
  using Floors = std::array<double, kRoles>;
  py::class_<Relevance, Order>(m, "Relevance")
      .def(py::init([](Identities* identities, double coherence, double recency, double attention,
                       double decay, double alpha, const Floors& floors) {
             return new Relevance(identities, {coherence, recency, attention, decay, floors},
                                  alpha);
           }),
           py::arg("identities"), py::arg("coherence"), py::arg("recency"), py::arg("attention"),
           py::arg("decay"), py::arg("alpha"), py::arg("floors"), py::keep_alive<1, 2>())
      .def(
          "set_coherence",
          [](Relevance& order, const Exact<uint32_t>& ids, const Exact<float>& values) {
            order.set_coherence(span_of(ids), span_of(values));
          },
          py::arg("ids"), py::arg("values"));
}

template <typename Kind>
void bind_order(py::module_& m, const char* name) {
  py::class_<Kind, Order>(m, name).def(py::init<Identities*>(), py::arg("identities"),
                                       py::keep_alive<1, 2>());
}

}  // namespace
}  // namespace evoke

PYBIND11_MODULE(_scores, m) {
  using namespace evoke;
  m.doc() = "scores and orders of evoke's policies";
  py::class_<Identities> identities(m, "Identities");
  identities.def(py::init<>()).def("grow", &Identities::grow, py::arg("count"));
  bind_identity_steps(identities);
  py::class_<Scores>(m, "Scores")
      .def(py::init<Identities*, double, bool>(), py::arg("identities"), py::arg("alpha"),
           py::arg("weighted") = false, py::keep_alive<1, 2>())
      .def("touch", &touch, py::arg("id"), py::arg("signal"), py::arg("clock"), py::arg("seq"))
      .def("log_scores", &log_scores, py::arg("ids"), py::arg("clock"));
  py::class_<Order> order(m, "Order");
  bind_order_steps(order);
  bind_order<Lru>(m, "Lru");
  bind_order<Fifo>(m, "Fifo");
  bind_order<Lfu>(m, "Lfu");
  py::class_<Product, Order>(m, "Product")
      .def(py::init<Identities*, double, double, bool>(), py::arg("identities"), py::arg("alpha"),
           py::arg("beta"), py::arg("rescaled") = false, py::keep_alive<1, 2>())
      .def("priority", &Product::priority, py::arg("key"), py::arg("at_clock"), py::arg("clock"));
  bind_order<Lrfu>(m, "Lrfu");
  bind_order<Clairvoyant>(m, "Clairvoyant");
  bind_relevance(m);
  bind_ranked(m);
  bind_return_index(m);
  bind_thresholds(m);
  bind_ranker(m);
  py::class_<Victims>(m, "Victims")
      .def(py::init<>())
      .def_property_readonly("ids", [](const Victims& v) { return to_array(v.ids); })
      .def_property_readonly("starts", [](const Victims& v) { return to_array(v.starts); });
  bind_observe(m);
  m.def("simulate", &run, py::arg("ids"), py::arg("starts"), py::arg("now_s"),
        py::arg("identities"), py::arg("capacity_blocks"), py::arg("tail_first"), py::arg("clock"),
        py::arg("keep_state"), py::arg("chains"), py::arg("scored"), py::arg("known"),
        py::arg("scores"), py::arg("order"), py::arg("victims") = nullptr);
}
