// The Python class evoke.core._scores.Ranker: checks what it is given.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "../bind_arrays.hpp"
#include "ranker.hpp"
#include "remembered.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

using Rows = py::array_t<uint32_t, py::array::c_style>;
constexpr size_t kKeyBytes = 32;

std::span<const uint8_t> checked_keys(const py::bytes& keys) {
  const std::span<const uint8_t> packed = span_of(keys);
  if (packed.size() % kKeyBytes == 0) return packed;
  throw std::invalid_argument("keys: " + std::to_string(packed.size()) +
                              " bytes, not a multiple of 32");
}

// Ranker's arguments are asserted in the core; here they come from Python.
class PyRanker {
 public:
  PyRanker(Identities* known, Scores* scores, uint32_t tier, double remembered_factor,
           size_t remembered_least, bool keep_state)
      : ranker_(known, scores, checked({tier, remembered_factor, remembered_least, keep_state})),
        tier_(tier) {}

  Ranker& get() { return ranker_; }

  void set_rules(double remembered_factor, size_t remembered_least, bool keep_state) {
    ranker_.set_rules(checked({tier_, remembered_factor, remembered_least, keep_state}));
  }

  void rescale(double alpha, double clock, double next) {
    if (!(alpha > 0 && alpha < 1)) {
      throw std::invalid_argument("alpha: " + std::to_string(alpha) + " is not between 0 and 1");
    }
    ranker_.rescale(alpha, clock, next);
  }

  void set_space(uint32_t number, const py::bytes& secret, uint32_t block_bytes) {
    const std::span<const uint8_t> bytes = span_of(secret);
    TagSecret value;
    if (bytes.size() != sizeof value) {
      throw std::invalid_argument("secret: " + std::to_string(bytes.size()) + " bytes, not 16");
    }
    if (block_bytes == 0) throw std::invalid_argument("block_bytes: 0 is not above 0");
    std::memcpy(&value, bytes.data(), sizeof value);
    ranker_.set_space(number, value, block_bytes);
    spaces_ = std::max(spaces_, number + 1);
  }

  void apply(const Rows& changes, const py::bytes& keys, double clock) {
    constexpr py::ssize_t kWords = sizeof(Change) / sizeof(uint32_t);
    if (changes.ndim() != 2 || changes.shape(1) != kWords) {
      throw std::invalid_argument("changes: not rows of " + std::to_string(kWords) + " numbers");
    }
    const auto* first = reinterpret_cast<const Change*>(changes.data());
    ranker_.apply({first, static_cast<size_t>(changes.shape(0))}, checked_keys(keys), clock);
  }

  void asked(uint32_t space, const py::bytes& keys, double clock, double now_s) {
    check_space(space);
    ranker_.asked(space, checked_keys(keys), clock, now_s);
  }

  void used(const Rows& rows, double clock) {
    const std::span<const uint32_t> used = checked_rows(rows);
    ranker_.used(used, clock);
  }

  py::tuple make_room(size_t count, uint64_t bytes_wanted, int64_t space,
                      const py::bytes& newcomers, uint32_t newcomers_space, double clock) {
    if (!ranker_.order()) throw std::invalid_argument("order: there is none yet");
    const std::span<const uint8_t> keys = checked_keys(newcomers);
    if (!keys.empty()) check_space(newcomers_space);
    const Room room = ranker_.make_room(count, bytes_wanted, space, newcomers_space, keys, clock);
    return py::make_tuple(Rows(static_cast<py::ssize_t>(room.rows.size()), room.rows.data()),
                          room.refused, room.is_short);
  }

  py::dict row(uint32_t number, double clock) {
    const uint32_t id = ranker_.id_of(number);
    if (id == kNoId) throw std::invalid_argument("row: " + std::to_string(number) + " is unknown");
    const Identities& known = ranker_.known();
    py::dict entry;
    entry["id"] = id;
    entry["parent_row"] = ranker_.parent_of(number);
    entry["held"] = ranker_.held(number);
    entry["resident"] = ranker_.order() && ranker_.order()->resident(id);
    entry["log_score"] = ranker_.scores().log_score(id, clock);
    entry["idle"] = clock - known.at_clock[id];
    entry["seq"] = known.seq[id];
    entry["count"] = known.count[id];
    return entry;
  }

  py::bytes dump(double clock) {
    const std::vector<RememberedRecord> records = dump_remembered(ranker_, clock);
    return {reinterpret_cast<const char*>(records.data()),
            records.size() * sizeof(RememberedRecord)};
  }

  py::tuple dump_part(double clock, size_t first, size_t count) {
    const RememberedPart part = evoke::dump_part(ranker_, clock, first, count);
    return py::make_tuple(py::bytes(reinterpret_cast<const char*>(part.records.data()),
                                    part.records.size() * sizeof(RememberedRecord)),
                          Rows(static_cast<py::ssize_t>(part.seqs.size()), part.seqs.data()),
                          first + count >= ranker_.table().end());
  }

  size_t load(const py::bytes& bytes, double clock, double elapsed, size_t rows_most) {
    const std::span<const uint8_t> raw = span_of(bytes);
    if (raw.size() % sizeof(RememberedRecord)) {
      throw std::invalid_argument("bytes: " + std::to_string(raw.size()) +
                                  ", not a multiple of 40");
    }
    std::vector<RememberedRecord> records(raw.size() / sizeof(RememberedRecord));
    if (!raw.empty()) std::memcpy(records.data(), raw.data(), raw.size());
    return load_remembered(&ranker_, records, clock, elapsed, rows_most);
  }

 private:
  static RankerRules checked(const RankerRules& rules) {
    if (!(rules.remembered_factor >= 1 && rules.remembered_factor < 1e6)) {
      throw std::invalid_argument("remembered_factor: " + std::to_string(rules.remembered_factor) +
                                  " is not at least 1");
    }
    return rules;
  }

  void check_space(uint32_t space) const {
    if (space < spaces_) return;
    throw std::invalid_argument("space: there is no " + std::to_string(space));
  }

  std::span<const uint32_t> checked_rows(const Rows& rows) const {
    const std::span<const uint32_t> span(rows.data(), static_cast<size_t>(rows.size()));
    for (const uint32_t row : span) {
      if (ranker_.id_of(row) != kNoId) continue;
      throw std::invalid_argument("rows: " + std::to_string(row) + " is unknown");
    }
    return span;
  }

  Ranker ranker_;
  uint32_t tier_;
  uint32_t spaces_ = 0;
};

}  // namespace

void bind_ranker(py::module_& m) {
  py::class_<PyRanker>(m, "Ranker")
      .def(py::init<Identities*, Scores*, uint32_t, double, size_t, bool>(), py::arg("identities"),
           py::arg("scores"), py::arg("tier") = 1, py::arg("remembered_factor") = 8.0,
           py::arg("remembered_least") = 4096, py::arg("keep_state") = true, py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def(
          "use", [](PyRanker& self, Order* order) { self.get().use(order); }, py::arg("order"),
          py::keep_alive<1, 2>())
      .def("set_rules", &PyRanker::set_rules, py::arg("remembered_factor"),
           py::arg("remembered_least"), py::arg("keep_state"))
      .def("rescale", &PyRanker::rescale, py::arg("alpha"), py::arg("clock"), py::arg("next"))
      .def("set_space", &PyRanker::set_space, py::arg("number"), py::arg("secret"),
           py::arg("block_bytes"))
      .def("apply", &PyRanker::apply, py::arg("changes"), py::arg("keys"), py::arg("clock"))
      .def("asked", &PyRanker::asked, py::arg("space"), py::arg("keys"), py::arg("clock"),
           py::arg("now_s"))
      .def("used", &PyRanker::used, py::arg("rows"), py::arg("clock"))
      .def("make_room", &PyRanker::make_room, py::arg("count"), py::arg("bytes_wanted"),
           py::arg("space") = -1, py::arg("newcomers") = py::bytes(),
           py::arg("newcomers_space") = 0, py::arg("clock") = 0.0)
      .def("row", &PyRanker::row, py::arg("row"), py::arg("clock"))
      .def("dump", &PyRanker::dump, py::arg("clock"))
      .def("load", &PyRanker::load, py::arg("records"), py::arg("clock"), py::arg("elapsed"),
           py::arg("rows_most") = 0)
      .def("dump_part", &PyRanker::dump_part, py::arg("clock"), py::arg("first"), py::arg("count"))
      .def_property_readonly("rows_most", [](PyRanker& self) { return self.get().rows_most(); })
      .def("set_seq", [](PyRanker& self, uint32_t seq) { self.get().set_seq(seq); })
      .def_property_readonly("rows", [](PyRanker& self) { return self.get().rows(); })
      .def_property_readonly("remembered", [](PyRanker& self) { return self.get().table().size(); })
      .def_property_readonly("limit", [](PyRanker& self) { return self.get().limit(); })
      .def("size_bytes", [](PyRanker& self) { return self.get().table().size_bytes(); });
}

}  // namespace evoke
