// The Python module evoke.core._spill.
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "../bind_arrays.hpp"
#include "store.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

constexpr size_t kMemoriesMax = 255;

template <size_t n>
std::array<uint8_t, n> to_bytes(const char* name, const py::bytes& bytes, bool may_be_empty) {
  const auto view = static_cast<std::string_view>(bytes);
  std::array<uint8_t, n> out{};
  if (view.size() != n && !(may_be_empty && view.empty())) {
    throw py::value_error(std::string(name) + ": " + std::to_string(view.size()) + " bytes, not " +
                          std::to_string(n));
  }
  std::copy(view.begin(), view.end(), out.begin());
  return out;
}

template <size_t n>
py::bytes from_bytes(const std::array<uint8_t, n>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), n};
}

std::unique_ptr<SpillStore> open_store(
    const std::string& directory, uint64_t capacity_bytes,
    const std::vector<std::tuple<size_t, uintptr_t, uint64_t>>& memories, uint64_t segment_bytes,
    size_t depth, const std::string& engine, bool direct) {
  if (engine != "auto" && engine != "threads") {
    throw py::value_error("engine: '" + engine + "' is not auto or threads");
  }
  SpillOptions options{directory, capacity_bytes, segment_bytes, depth, engine == "auto", direct,
                       {}};
  for (const auto& [number, address, bytes] : memories) {
    if (number >= kMemoriesMax) {
      throw py::value_error("memories: " + std::to_string(number) + " is not below 255");
    }
    options.memories.resize(std::max(options.memories.size(), number + 1), IoMemory{nullptr, 0});
    options.memories[number] = {reinterpret_cast<uint8_t*>(address), bytes};
  }
  int error = 0;
  std::string what;
  {
    const py::gil_scoped_release unlocked;
    try {
      return std::make_unique<SpillStore>(options);
    } catch (const std::system_error& refused) {
      error = refused.code().value();
      what = refused.what();
    }
  }
  PyErr_SetObject(PyExc_OSError, py::make_tuple(error, what).ptr());
  throw py::error_already_set();
}

uint64_t write_block(SpillStore& store, uint32_t namespace_number, const py::bytes& key,
                     const py::bytes& parent, uint32_t chain_index, const Exact<uint64_t>& refs,
                     const Exact<uint32_t>& lengths, const Exact<uint64_t>& sums,
                     const py::bytes& state, int64_t deadline_ms) {
  BlockToWrite block;
  block.namespace_number = namespace_number;
  block.key = to_bytes<32>("key", key, false);
  block.parent = to_bytes<32>("parent", parent, true);
  block.chain_index = chain_index;
  block.state = to_bytes<kStateBytes>("state", state, true);
  block.refs = to_vector("refs", refs);
  const std::vector<uint32_t> part_lengths = to_vector("lengths", lengths);
  const std::vector<uint64_t> part_sums = to_vector("sums", sums);
  if (part_lengths.size() != part_sums.size()) {
    throw py::value_error("sums: " + std::to_string(part_sums.size()) + " for " +
                          std::to_string(part_lengths.size()) + " parts");
  }
  for (size_t i = 0; i < part_sums.size(); i++) {
    block.parts.push_back({part_sums[i], part_lengths[i]});
  }
  return store.write(block, deadline_ms);
}

py::list take(SpillStore& store) {
  py::list out;
  for (const SpillDone& done : store.take()) {
    out.append(py::make_tuple(done.ticket, static_cast<int>(done.kind),
                              static_cast<int>(done.outcome), done.error, done.is_final, done.slot,
                              to_array(done.sums)));
  }
  return out;
}

py::dict entry_of(const SpillStore& store, uint32_t slot) {
  const Catalog& catalog = store.catalog();
  if (!catalog.is_live(slot)) {
    throw py::value_error("slot: " + std::to_string(slot) + " holds no block");
  }
  const SlotEntry& entry = catalog[slot];
  py::dict out;
  out["key"] = from_bytes(entry.key);
  out["namespace"] = entry.namespace_number;
  out["chain_index"] = entry.chain_index;
  out["length_bytes"] = entry.length_bytes;
  out["parts"] = entry.parts;
  out["sum"] = entry.sum;
  out["generation"] = entry.generation;
  out["verified"] = static_cast<bool>(entry.verified);
  out["reads"] = entry.reads;
  out["children"] = entry.children;
  const uint32_t parent = catalog.parent_of(slot);
  out["parent"] = parent == kNoSlot ? py::object(py::none()) : py::int_(parent);
  out["segment"] = segment_of(slot);
  out["offset"] = catalog.offset_of(slot);
  return out;
}

py::tuple blocks_of(const SpillStore& store, uint32_t namespace_number) {
  const std::vector<uint32_t> slots = store.slots_of(namespace_number);
  std::string keys;
  keys.reserve(slots.size() * sizeof(Key));
  for (const uint32_t slot : slots) {
    const Key& key = store.catalog()[slot].key;
    keys.append(key.begin(), key.end());
  }
  return py::make_tuple(to_array(slots), py::bytes(keys));
}

py::list segments(const SpillStore& store) {
  py::list out;
  for (uint32_t number = 0; number < store.catalog().segments(); number++) {
    const Segment& segment = store.catalog().segment(number);
    py::dict entry;
    entry["slot_bytes"] = segment.slot_bytes;
    entry["slots"] = segment.slots;
    entry["used"] = segment.used;
    entry["live"] = segment.live;
    out.append(entry);
  }
  return out;
}

std::vector<uint32_t> slots_in(const SpillStore& store, uint32_t number) {
  if (number >= store.catalog().segments()) {
    throw py::value_error("segment: " + std::to_string(number) + ", there are " +
                          std::to_string(store.catalog().segments()));
  }
  std::vector<uint32_t> slots;
  for (uint32_t index = 0; index < store.catalog().segment(number).slots; index++) {
    const uint32_t slot = slot_number(number, index);
    if (store.catalog().is_live(slot)) slots.push_back(slot);
  }
  return slots;
}

py::dict stats(const SpillStore& store) {
  const CatalogStats catalog = store.catalog().stats();
  const JournalStats journal = store.journal_stats();
  py::dict out;
  out["engine"] = store.engine().name();
  out["engine_refused"] = store.uring_refused();
  out["registered"] = store.engine().registered();
  out["direct"] = store.files().direct();
  out["segment_bytes"] = store.segment_bytes();
  out["segments"] = catalog.segments;
  out["segments_ready"] = journal.segments_ready;
  out["segments_carved"] = catalog.segments_carved;
  out["slots"] = catalog.slots;
  out["slots_used"] = catalog.slots_used;
  out["blocks"] = catalog.blocks;
  out["block_bytes"] = catalog.block_bytes;
  out["memory_bytes"] = catalog.memory_bytes;
  out["in_flight"] = store.in_flight();
  out["bytes_written"] = store.bytes_written();
  out["bytes_read"] = store.bytes_read();
  out["integrity_failures"] = store.integrity_failures();
  out["index_bytes_written"] = journal.bytes_written;
  out["index_records"] = journal.records_in_file;
  out["index_records_waiting"] = journal.records_waiting;
  out["index_records_lost"] = journal.records_lost;
  out["index_compactions"] = journal.compactions;
  out["index_syncs"] = journal.syncs;
  out["index_errors"] = journal.errors;
  out["index_error"] = journal.last_error;
  out["prepare_error"] = journal.prepare_error;
  return out;
}

py::dict recovered(const SpillStore& store) {
  const Recovered& found = store.recovered();
  py::dict out;
  out["records"] = found.records;
  out["bad_records"] = found.bad_records;
  out["blocks"] = found.blocks;
  out["dropped_blocks"] = found.dropped_blocks;
  out["damaged"] = found.damaged;
  return out;
}

void bind_blocks(py::class_<SpillStore>& store) {
  store
      .def(
          "add_namespace",
          [](SpillStore& self, const py::bytes& id) {
            return self.add_namespace(to_bytes<32>("id", id, false));
          },
          py::arg("id"))
      .def(
          "find",
          [](const SpillStore& self, uint32_t number, const py::bytes& keys) {
            return to_array(self.find(number, span_of(keys)));
          },
          py::arg("namespace"), py::arg("keys"))
      .def("entry", &entry_of, py::arg("slot"))
      .def(
          "touch",
          [](SpillStore& self, const Exact<uint32_t>& slots) { self.touch(span_of(slots)); },
          py::arg("slots"))
      .def(
          "link",
          [](SpillStore& self, uint32_t number, const py::bytes& keys) {
            self.link(number, span_of(keys));
          },
          py::arg("namespace"), py::arg("keys"))
      .def(
          "victims",
          [](const SpillStore& self, size_t count, uint64_t bytes, uint64_t block_bytes) {
            return to_array(self.victims(count, bytes, block_bytes));
          },
          py::arg("count"), py::arg("bytes_wanted") = 0, py::arg("block_bytes") = 0)
      .def(
          "erase",
          [](SpillStore& self, const Exact<uint32_t>& slots) { self.erase(span_of(slots)); },
          py::arg("slots"))
      .def("blocks_of", &blocks_of, py::arg("namespace"))
      .def("segments", &segments)
      .def(
          "slots_in",
          [](const SpillStore& self, uint32_t number) { return to_array(slots_in(self, number)); },
          py::arg("segment"))
      .def("check", [](const SpillStore& self) { self.catalog().check(); });
}

void bind_transfers(py::class_<SpillStore>& store) {
  store
      .def("write", &write_block, py::arg("namespace"), py::arg("key"), py::arg("parent"),
           py::arg("chain_index"), py::arg("refs"), py::arg("lengths"), py::arg("sums"),
           py::arg("state") = py::bytes(), py::arg("deadline_ms") = 0)
      .def(
          "read",
          [](SpillStore& self, uint32_t slot, const Exact<uint64_t>& refs,
             const Exact<uint32_t>& lengths, bool verify, int64_t deadline_ms) {
            return self.read(slot, span_of(refs), span_of(lengths), verify, deadline_ms);
          },
          py::arg("slot"), py::arg("refs"), py::arg("lengths"), py::arg("verify") = true,
          py::arg("deadline_ms") = 0)
      .def("sync", &SpillStore::sync)
      .def("probe", &SpillStore::probe, py::arg("deadline_ms"))
      .def("prepare", &SpillStore::prepare)
      .def("take", &take)
      .def("inject", &SpillStore::inject, py::arg("what"), py::arg("error"), py::arg("delay_ms"),
           py::arg("operations"))
      .def("close", &SpillStore::close, py::arg("wait_ms") = 5000,
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace evoke

PYBIND11_MODULE(_spill, m) {
  using namespace evoke;
  m.doc() = "flash directories as stores of blocks";
  m.attr("NO_SLOT") = kNoSlot;
  m.attr("STATE_BYTES") = kStateBytes;
  m.attr("PAGE_BYTES") = kPageBytes;
  m.attr("DONE") = static_cast<int>(SpillOutcome::kDone);
  m.attr("CORRUPT") = static_cast<int>(SpillOutcome::kCorrupt);
  m.attr("FAILED") = static_cast<int>(SpillOutcome::kFailed);
  m.attr("LATE") = static_cast<int>(SpillOutcome::kLate);
  m.attr("CANCELLED") = static_cast<int>(SpillOutcome::kCancelled);
  m.attr("WRITE") = static_cast<int>(SpillKind::kWrite);
  m.attr("READ") = static_cast<int>(SpillKind::kRead);
  m.attr("SYNC") = static_cast<int>(SpillKind::kSync);
  m.attr("PROBE") = static_cast<int>(SpillKind::kProbe);
  py::class_<SpillStore> store(m, "Store");
  store
      .def(py::init(&open_store), py::arg("directory"), py::arg("capacity_bytes"),
           py::arg("memories"), py::arg("segment_bytes") = 0, py::arg("depth") = 4,
           py::arg("engine") = "auto", py::arg("direct") = true)
      .def_property_readonly("fd", &SpillStore::fd)
      .def_property_readonly("segment_bytes", &SpillStore::segment_bytes)
      .def_property_readonly("recovered", &recovered)
      .def(
          "namespace_id",
          [](const SpillStore& self, uint32_t number) {
            return from_bytes(self.namespace_id(number));
          },
          py::arg("namespace"))
      .def("take_states",
           [](SpillStore& self) {
             py::list out;
             for (const auto& [slot, state] : self.take_states()) {
               out.append(py::make_tuple(slot, from_bytes(state)));
             }
             return out;
           })
      .def("stats", &stats);
  bind_blocks(store);
  bind_transfers(store);
}
