#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "bind_arrays.hpp"
#include "bind_table.hpp"
#include "index.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

using Rows = Exact<uint32_t>;
using Refs = Exact<uint64_t>;

template <typename T>
py::array_t<T> new_array(size_t count) {
  return py::array_t<T>(static_cast<py::ssize_t>(count));
}

py::bytes bytes_of(const void* data, size_t length_bytes) {
  return {static_cast<const char*>(data), length_bytes};
}

void require_open(bool open, const char* what) {
  if (!open) throw py::value_error(std::string(what) + ": closed");
}

// The Index of Python: can be closed.
class PyIndex {
 public:
  PyIndex(size_t buckets, size_t max_buckets) {
    try {
      index_ = std::make_unique<Index>(buckets, max_buckets);
    } catch (const std::system_error& error) {
      py::set_error(PyExc_MemoryError, error.what());
      throw py::error_already_set();
    }
  }

  Index& get() const {
    require_open(index_ != nullptr, "index");
    return *index_;
  }
  void close() { index_.reset(); }

  py::tuple add_namespace(uint32_t parts) {
    const auto [number, secret] = get().add_namespace(parts);
    return py::make_tuple(number, bytes_of(&secret, sizeof secret));
  }

  uint32_t insert(uint32_t namespace_number, const py::bytes& key, uint32_t chain_index,
                  const py::bytes& parent, const Refs& refs, const Rows& lengths, const Refs& sums,
                  uint32_t tier) {
    if (span_of(key).size() != 32) {
      throw py::value_error("key: " + std::to_string(span_of(key).size()) + " bytes, expected 32");
    }
    return get().insert(namespace_number,
                        new_blocks(key, chain_index, parent, refs, lengths, sums, tier))[0];
  }

  py::array_t<uint32_t> insert_many(uint32_t namespace_number, const py::bytes& keys,
                                    uint64_t first_index, const py::bytes& parent, const Refs& refs,
                                    const Rows& lengths, const Refs& sums, uint32_t tier) {
    return to_array(get().insert(namespace_number,
                                 new_blocks(keys, first_index, parent, refs, lengths, sums, tier)));
  }

  py::array_t<uint8_t> is_visible(const Rows& rows) const {
    auto visible = new_array<uint8_t>(static_cast<size_t>(rows.size()));
    for (py::ssize_t i = 0; i < rows.size(); ++i) {
      visible.mutable_data()[i] = get().is_visible(rows.data()[i]) ? 1 : 0;
    }
    return visible;
  }

  py::tuple part(const Rows& rows, uint32_t part) const {
    const auto count = static_cast<size_t>(rows.size());
    auto refs = new_array<uint64_t>(count);
    auto lengths = new_array<uint32_t>(count);
    auto sums = new_array<uint64_t>(count);
    for (size_t i = 0; i < count; ++i) {
      const Row& row = get().live_row(rows.data()[i]);
      if (part >= row.part_count) {
        throw py::value_error("part: " + std::to_string(part) + " of a row with " +
                              std::to_string(row.part_count));
      }
      const Part one = row.part(part);
      refs.mutable_data()[i] = one.ref;
      lengths.mutable_data()[i] = one.length_bytes;
      sums.mutable_data()[i] = one.sum;
    }
    return py::make_tuple(refs, lengths, sums);
  }

  py::bytes keys(const Rows& rows) const {
    std::string packed;
    packed.reserve(static_cast<size_t>(rows.size()) * 32);
    for (const uint32_t number : span_of(rows)) {
      const Row& row = get().live_row(number);
      packed.append(reinterpret_cast<const char*>(row.key.data()), row.key.size());
    }
    return {packed.data(), packed.size()};
  }

  py::tuple facts(const Rows& rows) const {
    const auto count = static_cast<size_t>(rows.size());
    auto namespaces = new_array<uint32_t>(count);
    auto parts = new_array<uint32_t>(count);
    auto staying = new_array<uint8_t>(count);
    for (size_t i = 0; i < count; ++i) {
      const Row& row = get().live_row(rows.data()[i]);
      namespaces.mutable_data()[i] = row.namespace_number;
      parts.mutable_data()[i] = row.part_count;
      staying.mutable_data()[i] = row.must_stay() || row.lent != 0 ? 1 : 0;
    }
    return py::make_tuple(namespaces, parts, staying);
  }

  py::dict row(uint32_t number) const {
    const Row& row = get().live_row(number);
    py::dict entry;
    entry["namespace"] = row.namespace_number;
    entry["key"] = bytes_of(row.key.data(), row.key.size());
    entry["chain_index"] = row.chain_index;
    entry["parent_row"] = row.parent;
    uint32_t children = 0;
    for (uint32_t at = row.first_child; at != kNoRow; at = get().live_row(at).next_sibling) {
      ++children;
    }
    entry["children"] = children;
    entry["holds"] = row.holds;
    entry["tier"] = uint32_t{row.tier};
    entry["parts"] = uint32_t{row.part_count};
    entry["bytes"] = row.bytes();
    entry["generation"] = row.generation;
    return entry;
  }

  py::tuple take_changes() {
    static_assert(sizeof(Change) == 5 * sizeof(uint32_t));
    const Changes changes = get().take_changes();
    auto list = py::array_t<uint32_t>({changes.list.size(), size_t{5}});
    if (changes.list.empty()) return py::make_tuple(list, py::bytes());
    std::memcpy(list.mutable_data(), changes.list.data(), changes.list.size() * sizeof(Change));
    return py::make_tuple(list, bytes_of(changes.keys.data(), changes.keys.size()));
  }

  py::list usage() const {
    py::list list;
    for (const NamespaceUsage& usage : get().usage()) {
      py::dict entry;
      entry["namespace"] = usage.number;
      entry["blocks"] = usage.blocks;
      entry["bytes"] = usage.bytes;
      entry["gaps"] = usage.gaps;
      entry["leaving_bytes"] = usage.leaving_bytes;
      list.append(entry);
    }
    return list;
  }

 private:
  static NewBlocks new_blocks(const py::bytes& keys, uint64_t first_index, const py::bytes& parent,
                              const Refs& refs, const Rows& lengths, const Refs& sums,
                              uint32_t tier) {
    return {span_of(keys),    span_of(parent), first_index, span_of(refs),
            span_of(lengths), span_of(sums),   tier};
  }

  std::unique_ptr<Index> index_;
};

void bind_index_class(py::module_& m) {
  using I = const PyIndex&;
  py::class_<PyIndex>(m, "Index")
      .def(py::init<size_t, size_t>(), py::arg("buckets") = size_t{1} << 14,
           py::arg("max_buckets") = size_t{1} << 24)
      .def("add_namespace", &PyIndex::add_namespace, py::arg("parts"))
      .def(
          "drop_namespace",
          [](I self, uint32_t number) { return to_array(self.get().drop_namespace(number)); },
          py::arg("namespace"))
      .def(
          "find",
          [](I self, uint32_t number, const py::bytes& keys) {
            return to_array(self.get().find(number, span_of(keys)));
          },
          py::arg("namespace"), py::arg("keys"))
      .def("insert", &PyIndex::insert, py::arg("namespace"), py::arg("key"), py::arg("chain_index"),
           py::arg("parent"), py::arg("refs"), py::arg("lengths"), py::arg("sums"), py::arg("tier"))
      .def("insert_many", &PyIndex::insert_many, py::arg("namespace"), py::arg("keys"),
           py::arg("first_index"), py::arg("parent"), py::arg("refs"), py::arg("lengths"),
           py::arg("sums"), py::arg("tier"))
      .def(
          "link",
          [](I self, uint32_t number, const py::bytes& keys) {
            self.get().link(number, span_of(keys));
          },
          py::arg("namespace"), py::arg("keys"))
      .def(
          "erase",
          [](I self, const Rows& rows) { return to_array(self.get().erase(span_of(rows))); },
          py::arg("rows"))
      .def(
          "relocate",
          [](I self, const Rows& rows, const Refs& refs, uint32_t tier) {
            return to_array(self.get().relocate(span_of(rows), span_of(refs), tier));
          },
          py::arg("rows"), py::arg("refs"), py::arg("tier"))
      .def(
          "hold", [](I self, const Rows& rows) { self.get().hold(span_of(rows)); }, py::arg("rows"))
      .def(
          "unhold",
          [](I self, const Rows& rows) { return to_array(self.get().unhold(span_of(rows))); },
          py::arg("rows"))
      .def(
          "lend", [](I self, const Rows& rows) { self.get().lend(span_of(rows)); }, py::arg("rows"))
      .def(
          "take_back",
          [](I self, const Rows& rows) { return to_array(self.get().take_back(span_of(rows))); },
          py::arg("rows"))
      .def("is_visible", &PyIndex::is_visible, py::arg("rows"))
      .def(
          "touch", [](I self, const Rows& rows) { self.get().touch(span_of(rows)); },
          py::arg("rows"))
      .def(
          "victims",
          [](I self, size_t count, uint64_t bytes_wanted, int64_t number) {
            return to_array(self.get().victims(count, bytes_wanted, number));
          },
          py::arg("count"), py::arg("bytes_wanted") = 0, py::arg("namespace") = -1)
      .def(
          "descendants",
          [](I self, const Rows& rows) { return to_array(self.get().descendants(span_of(rows))); },
          py::arg("rows"))
      .def(
          "rows_in",
          [](I self, uint64_t begin, uint64_t end) {
            return to_array(self.get().rows_in(begin, end));
          },
          py::arg("begin_ref"), py::arg("end_ref"))
      .def("oldest", [](I self) { return self.get().oldest(); })
      .def("is_growing", [](I self) { return self.get().publisher().is_growing(); })
      .def("part", &PyIndex::part, py::arg("rows"), py::arg("part"))
      .def("keys", &PyIndex::keys, py::arg("rows"))
      .def("facts", &PyIndex::facts, py::arg("rows"))
      .def("row", &PyIndex::row, py::arg("row"))
      .def(
          "rows_of",
          [](I self, uint32_t number, size_t count) {
            return to_array(self.get().rows_of(number, count));
          },
          py::arg("namespace"), py::arg("count") = SIZE_MAX)
      .def("follow", [](I self) { self.get().follow(); })
      .def("take_changes", &PyIndex::take_changes)
      .def_property_readonly("changes", [](PyIndex& self) { return self.get().changes(); })
      .def("usage", &PyIndex::usage)
      .def("check", [](I self) { self.get().check(); })
      .def("__len__", [](I self) { return self.get().size(); })
      .def("metadata_bytes", [](I self) { return self.get().metadata_bytes(); })
      .def("table_fd", [](I self) { return self.get().publisher().table().fd(); })
      .def_property_readonly("table_epoch",
                             [](I self) { return self.get().publisher().table().epoch(); })
      .def_property_readonly("unpublished",
                             [](I self) { return self.get().publisher().unpublished(); })
      .def("close", &PyIndex::close);
}

}  // namespace

void bind_index(py::module_& m) {
  m.attr("NO_ROW") = kNoRow;
  m.attr("NO_REF") = ~uint64_t{0};
  bind_index_class(m);
  bind_table(m);
}

}  // namespace evoke
