// Pool, FencePage and CopyEngine as Python sees them (_native.pyi).
#include <string>
#include <utility>

#include "bind_arrays.hpp"
#include "copy.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

// Objects with a close(): what they own is shared with running jobs.
template <typename T>
struct Closable {
  std::shared_ptr<T> owned;
  T& get(const char* name) const {
    if (owned == nullptr) throw py::value_error(std::string(name) + " is closed");
    return *owned;
  }
};
using PoolHandle = Closable<Pool>;
using FenceHandle = Closable<FencePage>;

unsigned to_word(int64_t word) {
  if (word >= 0 && word < kFenceWords) return static_cast<unsigned>(word);
  throw py::value_error("word is " + std::to_string(word) + " of " + std::to_string(kFenceWords));
}

Transfer make_transfer(const PoolHandle& pool, const Exact<uint32_t>& slots,
                       const Exact<uint64_t>& refs, int64_t deadline_ms, const FenceHandle* fence,
                       int64_t fence_word) {
  pool.get("pool");
  Transfer transfer;
  transfer.pool = pool.owned;
  transfer.slots = to_vector("slots", slots);
  transfer.refs = to_vector("refs", refs);
  transfer.deadline_ms = deadline_ms;
  if (fence != nullptr) {
    fence->get("fence");
    transfer.fence = fence->owned;
    transfer.fence_word = to_word(fence_word);
  }
  return transfer;
}

py::list take_completed(CopyEngine& engine) {
  py::list out;
  for (const Completed& done : engine.take_completed()) {
    Exact<uint8_t> outcomes(static_cast<py::ssize_t>(done.outcomes.size()));
    for (size_t i = 0; i < done.outcomes.size(); i++) {
      outcomes.mutable_data()[i] = static_cast<uint8_t>(done.outcomes[i]);
    }
    out.append(py::make_tuple(done.ticket, outcomes, to_array(done.sums)));
  }
  return out;
}

py::dict stats(const CopyEngine& engine) {
  const CopyStats stats = engine.stats();
  py::dict out;
  out["bytes_stored"] = stats.bytes_stored;
  out["bytes_fetched"] = stats.bytes_fetched;
  out["bytes_moved"] = stats.bytes_moved;
  out["blocks"] = stats.blocks;
  out["faults"] = stats.faults;
  out["cpu_ns"] = stats.cpu_ns;
  return out;
}

// ------------------------------------------------------------------ classes

void bind_peer_memory(py::module_& m) {
  py::class_<PoolHandle>(m, "Pool")
      .def(py::init([](int fd, const py::object& pool_bytes, std::shared_ptr<Layout> layout) {
             const auto bytes = static_cast<uint64_t>(to_number("pool_bytes", pool_bytes, false));
             return PoolHandle{std::make_shared<Pool>(fd, bytes, std::move(layout))};
           }),
           py::arg("fd"), py::arg("pool_bytes"), py::arg("layout").none(false))
      .def_property_readonly(
          "layout", [](const PoolHandle& pool) { return pool.get("pool").shared_layout(); })
      .def_property_readonly("pool_bytes",
                             [](const PoolHandle& pool) { return pool.get("pool").pool_bytes(); })
      .def_property_readonly("guards_holes",
                             [](const PoolHandle& pool) { return pool.get("pool").guards_holes(); })
      .def("close", [](PoolHandle& pool) {
        std::shared_ptr<Pool> last = std::exchange(pool.owned, nullptr);
        const py::gil_scoped_release unlocked;
        last.reset();  // unmaps, unless a job runs
      });
  py::class_<FenceHandle>(m, "FencePage")
      .def(py::init([](int fd) { return FenceHandle{std::make_shared<FencePage>(fd)}; }),
           py::arg("fd"))
      .def_static("make", &FencePage::make)
      .def(
          "arm",
          [](const FenceHandle& fence, int64_t word) {
            if (!fence.get("fence").arm(to_word(word))) {
              throw py::value_error("word " + std::to_string(word) + ": a copy is active");
            }
          },
          py::arg("word"))
      .def(
          "cancel",
          [](const FenceHandle& fence, int64_t word, int wait_ms) {
            fence.get("fence");
            const std::shared_ptr<FencePage> kept = fence.owned;  // another thread may close it
            const unsigned number = to_word(word);
            const py::gil_scoped_release unlocked;
            return kept->cancel(number, wait_ms);
          },
          py::arg("word"), py::arg("wait_ms"))
      .def("close", [](FenceHandle& fence) { fence.owned = nullptr; });
}

void bind_engine(py::module_& m) {
  m.attr("COPIED") = static_cast<int>(Outcome::kCopied);
  m.attr("CORRUPT") = static_cast<int>(Outcome::kCorrupt);
  m.attr("FAULT") = static_cast<int>(Outcome::kFault);
  m.attr("LATE") = static_cast<int>(Outcome::kLate);
  m.attr("CANCELLED") = static_cast<int>(Outcome::kCancelled);
  py::class_<CopyEngine>(m, "CopyEngine")
      .def(py::init<int>(), py::arg("workers"))
      .def_property_readonly("eventfd", &CopyEngine::eventfd)
      .def_property_readonly("workers", &CopyEngine::workers)
      .def(
          "add_memory",
          [](CopyEngine& engine, uintptr_t address, uint64_t length_bytes) {
            return engine.add_memory(reinterpret_cast<uint8_t*>(address), length_bytes);
          },
          py::arg("address"), py::arg("length_bytes"))
      .def(
          "store",
          [](CopyEngine& engine, const PoolHandle& pool, const Exact<uint32_t>& slots,
             const Exact<uint64_t>& refs, int64_t deadline_ms, const FenceHandle* fence,
             int64_t fence_word) {
            return engine.store(make_transfer(pool, slots, refs, deadline_ms, fence, fence_word));
          },
          py::arg("pool"), py::arg("slots"), py::arg("refs"), py::arg("deadline_ms") = 0,
          py::arg("fence") = nullptr, py::arg("fence_word") = 0)
      .def(
          "fetch",
          [](CopyEngine& engine, const PoolHandle& pool, const Exact<uint32_t>& slots,
             const Exact<uint64_t>& refs, const Exact<uint64_t>& sums, bool verify,
             int64_t deadline_ms, const FenceHandle* fence, int64_t fence_word) {
            Transfer transfer = make_transfer(pool, slots, refs, deadline_ms, fence, fence_word);
            transfer.sums = to_vector("sums", sums);
            transfer.verify = verify;
            return engine.fetch(std::move(transfer));
          },
          py::arg("pool"), py::arg("slots"), py::arg("refs"), py::arg("sums"), py::arg("verify"),
          py::arg("deadline_ms") = 0, py::arg("fence") = nullptr, py::arg("fence_word") = 0)
      .def(
          "move",
          [](CopyEngine& engine, const Exact<uint64_t>& source_refs,
             const Exact<uint64_t>& target_refs, uint64_t length_bytes,
             const Exact<uint64_t>& sums) {
            return engine.move(to_vector("source_refs", source_refs),
                               to_vector("target_refs", target_refs), length_bytes,
                               to_vector("sums", sums));
          },
          py::arg("source_refs"), py::arg("target_refs"), py::arg("length_bytes"), py::arg("sums"))
      .def("take_completed", &take_completed)
      .def("in_flight", &CopyEngine::in_flight)
      .def("heartbeats", &CopyEngine::heartbeats)
      .def("stats", &stats)
      .def("close", &CopyEngine::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_copy(py::module_& m) {
  bind_layout(m);
  bind_peer_memory(m);
  bind_engine(m);
}

}  // namespace evoke
