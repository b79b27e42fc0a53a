// The Python class evoke.core._scores.Order: the contract of order.hpp step by step, checked.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "order.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

using Ids = py::array_t<uint32_t, py::array::c_style>;

void check_below(uint32_t id, size_t count) {
  if (id < count) return;
  throw std::invalid_argument("id: " + std::to_string(id) + " is not below " +
                              std::to_string(count));
}

void check_id(const Order& order, uint32_t id) { check_below(id, order.size()); }

void check_resident(const Order& order, uint32_t id, bool wanted) {
  check_id(order, id);
  if (order.resident(id) != wanted) {
    throw std::invalid_argument("id: " + std::to_string(id) +
                                (wanted ? " is not resident" : " is resident"));
  }
}

void request(Order& order, const Ids& ids, double clock, double now_s) {
  const std::span<const uint32_t> asked(ids.data(), static_cast<size_t>(ids.size()));
  for (const uint32_t id : asked) check_id(order, id);
  if (order.needs_future()) {
    throw std::invalid_argument("order: needs the future, which only a recorded stream has");
  }
  order.request({asked, clock, now_s});
}

void admit(Order& order, uint32_t id, std::optional<uint32_t> parent) {
  check_resident(order, id, false);
  if (parent) check_id(order, *parent);
  order.admit(id, parent.value_or(kNoId));
}

std::optional<uint32_t> worst(Order& order, double clock) {
  const uint32_t id = order.worst(clock);
  return id == kNoId ? std::nullopt : std::optional(id);
}

void grow(Order& order, size_t count) {
  if (count > order.identities().size()) {
    throw std::invalid_argument("count: " + std::to_string(count) + " is above the " +
                                std::to_string(order.identities().size()) + " identities");
  }
  order.grow(count);
}

void set_bytes(Identities& known, uint32_t id, uint32_t bytes) {
  check_below(id, known.size());
  if (bytes == 0) throw std::invalid_argument("bytes: 0 is not above 0");
  known.bytes[id] = bytes;
}

void set_role(Identities& known, uint32_t id, uint8_t role, uint8_t priority) {
  check_below(id, known.size());
  known.role[id] = role;
  known.priority[id] = priority;
}

}  // namespace

void bind_identity_steps(py::class_<Identities>& identities) {
  identities.def("set_bytes", &set_bytes, py::arg("id"), py::arg("bytes"))
      .def("set_role", &set_role, py::arg("id"), py::arg("role"), py::arg("priority") = 16)
      .def(
          "note",
          [](Identities& known, uint32_t id, double clock, uint32_t seq) {
            check_below(id, known.size());
            known.note(id, clock, seq);
          },
          py::arg("id"), py::arg("clock"), py::arg("seq"));
}

void bind_order_steps(py::class_<Order>& order) {
  const auto resident = [](void (Order::*step)(uint32_t)) {
    return [step](Order& of, uint32_t id) {
      check_resident(of, id, true);
      (of.*step)(id);
    };
  };
  order.def("grow", &grow, py::arg("count"))
      .def("request", &request, py::arg("ids"), py::arg("clock"), py::arg("now_s"))
      .def("admit", &admit, py::arg("id"), py::arg("parent") = std::nullopt)
      .def("leave", resident(&Order::leave), py::arg("id"))
      .def("hold", resident(&Order::hold), py::arg("id"))
      .def("unhold", resident(&Order::unhold), py::arg("id"))
      .def(
          "forget",
          [](Order& of, uint32_t id) {
            check_resident(of, id, false);
            of.forget(id);
          },
          py::arg("id"))
      .def("worst", &worst, py::arg("clock"))
      .def(
          "victims",
          [](Order& of, size_t count, double clock) {
            const std::vector<uint32_t> ids = of.victims(count, clock);
            return Ids(static_cast<py::ssize_t>(ids.size()), ids.data());
          },
          py::arg("count"), py::arg("clock"))
      .def(
          "refuses",
          [](Order& of, uint32_t newcomer, double clock) {
            check_resident(of, newcomer, false);
            return of.refuses(newcomer, clock);
          },
          py::arg("newcomer"), py::arg("clock"))
      .def(
          "resident",
          [](const Order& of, uint32_t id) {
            check_id(of, id);
            return of.resident(id);
          },
          py::arg("id"))
      .def_property_readonly("residents", &Order::residents)
      .def_property_readonly("candidates", &Order::candidates);
}

}  // namespace evoke
