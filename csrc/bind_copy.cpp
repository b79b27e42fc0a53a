// Layout, Pool, FencePage, CopyEngine and the checksum as Python sees them (_native.pyi).
#include <string>
#include <utility>

#include "bindings.hpp"
#include "blocks.hpp"
#include "copy.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

// Without forcecast: a number that does not fit is a TypeError, never another slot.
template <typename T>
using Exact = py::array_t<T, py::array::c_style>;

template <typename T>
std::vector<T> to_vector(const char* name, const Exact<T>& array) {
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + ": " + std::to_string(array.ndim()) +
                          " dimensions, not 1");
  }
  return {array.data(), array.data() + array.size()};
}

template <typename T>
Exact<T> to_array(const std::vector<T>& values) {
  return Exact<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Any C-contiguous buffer, held as long as this lives.
class Buffer {
 public:
  Buffer(const char* name, const py::object& object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) {
      return;
    }
    py::error_already_set error;
    throw py::value_error(std::string(name) + ": " + error.what());
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint8_t* bytes() const { return static_cast<uint8_t*>(view_.buf); }
  uint64_t size() const { return static_cast<uint64_t>(view_.len); }

 private:
  Py_buffer view_;
};

// Integers of peers may be of any size; they must become a ValueError and not wrap.
int64_t to_number(const std::string& name, const py::handle& value, bool is_signed) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (number == -1 && PyErr_Occurred() != nullptr) {
    py::error_already_set error;
    throw py::value_error(name + ": " + error.what());
  }
  if (overflow == 0 && (is_signed || number >= 0)) return number;
  throw py::value_error(name + ": " + std::string(py::str(value)) + " is out of range");
}

py::sequence to_sequence(const std::string& name, const py::handle& value, size_t least,
                         size_t most) {
  if (!py::isinstance<py::sequence>(value)) throw py::value_error(name + ": not a sequence");
  auto sequence = py::reinterpret_borrow<py::sequence>(value);
  if (sequence.size() < least || sequence.size() > most) {
    throw py::value_error(name + ": " + std::to_string(sequence.size()) + " entries, not " +
                          std::to_string(least) + " to " + std::to_string(most));
  }
  return sequence;
}

Segment to_segment(const std::string& name, const py::handle& value) {
  const py::sequence fields = to_sequence(name, value, 4, 4);
  Segment segment;
  segment.base = to_number(name + ": base", fields[0], true);
  segment.slot_stride = to_number(name + ": slot_stride", fields[1], true);
  segment.item_bytes = static_cast<uint64_t>(to_number(name + ": item_bytes", fields[3], false));
  const py::sequence dims = to_sequence(name + ": dims", fields[2], 0, kMaxDims);
  for (size_t d = 0; d < dims.size(); d++) {
    const std::string at = name + ": dims[" + std::to_string(d) + "]";
    const py::sequence dim = to_sequence(at, dims[d], 2, 2);
    segment.dims.push_back({static_cast<uint64_t>(to_number(at + ": count", dim[0], false)),
                            to_number(at + ": stride", dim[1], true)});
  }
  return segment;
}

std::shared_ptr<Layout> make_layout(const py::object& segments, const py::object& slots,
                                    const py::object& pool_bytes) {
  const py::sequence list = to_sequence("segments", segments, 1, kMaxSegments);
  std::vector<Segment> parsed;
  for (size_t n = 0; n < list.size(); n++) {
    parsed.push_back(to_segment("segments[" + std::to_string(n) + "]", list[n]));
  }
  const auto slot_count = static_cast<uint64_t>(to_number("slots", slots, false));
  const auto bytes = static_cast<uint64_t>(to_number("pool_bytes", pool_bytes, false));
  const py::gil_scoped_release unlocked;
  return std::make_shared<Layout>(parsed, slot_count, bytes);
}

// Layout.gather and Layout.scatter.
Exact<uint64_t> copy_here(const Layout& layout, bool is_gather, uintptr_t pool_address,
                          const Exact<uint32_t>& slot_array, const Buffer& buffer) {
  const std::vector<uint32_t> slots = to_vector("slots", slot_array);
  check_slots(slots, layout.slots());
  if (!is_gather) check_distinct(slots);
  if (buffer.size() != slots.size() * layout.block_bytes()) {
    throw py::value_error(std::string(is_gather ? "out: " : "source: ") +
                          std::to_string(buffer.size()) + " bytes for " +
                          std::to_string(slots.size()) + " blocks of " +
                          std::to_string(layout.block_bytes()));
  }
  std::vector<uint64_t> sums(slots.size());
  {
    const py::gil_scoped_release unlocked;
    auto* pool = reinterpret_cast<uint8_t*>(pool_address);
    for (size_t i = 0; i < slots.size(); i++) {
      uint8_t* stored = buffer.bytes() + i * layout.block_bytes();
      sums[i] = is_gather ? gather_block(kernel(), layout, pool, slots[i], stored)
                          : scatter_block(kernel(), layout, pool, slots[i], stored);
    }
  }
  return to_array(sums);
}

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

void bind_sums(py::module_& m) {
  m.attr("COPIED") = static_cast<int>(Outcome::kCopied);
  m.attr("CORRUPT") = static_cast<int>(Outcome::kCorrupt);
  m.attr("FAULT") = static_cast<int>(Outcome::kFault);
  m.attr("LATE") = static_cast<int>(Outcome::kLate);
  m.attr("CANCELLED") = static_cast<int>(Outcome::kCancelled);
  m.def(
      "xxh3_64",
      [](const py::object& data) {
        const Buffer buffer("data", data, false);
        const py::gil_scoped_release unlocked;
        return xxh3_64(buffer.bytes(), buffer.size());
      },
      py::arg("data"));
  m.def("kernel_name", [] { return kernel().name; });
  m.def(
      "self_test",
      [](int milliseconds) {
        if (milliseconds < 1 || milliseconds > 10000) {
          throw py::value_error("milliseconds is " + std::to_string(milliseconds) +
                                ", not 1 to 10000");
        }
        std::vector<std::pair<std::string, double>> rates;
        {
          const py::gil_scoped_release unlocked;
          rates = self_test(milliseconds);
        }
        py::dict out;
        for (const auto& [name, rate] : rates) out[py::str(name)] = rate;
        return out;
      },
      py::arg("milliseconds") = 20);
}

void bind_layout(py::module_& m) {
  py::class_<Layout, std::shared_ptr<Layout>>(m, "Layout")
      .def(py::init(&make_layout), py::arg("segments"), py::arg("slots"), py::arg("pool_bytes"))
      .def_property_readonly("block_bytes", &Layout::block_bytes)
      .def_property_readonly("slots", &Layout::slots)
      .def_property_readonly("runs_per_block", &Layout::runs_per_block)
      .def_property_readonly("run_bytes", &Layout::run_bytes)
      .def(
          "gather",
          [](const Layout& layout, uintptr_t pool_address, const Exact<uint32_t>& slots,
             const py::object& out) {
            return copy_here(layout, true, pool_address, slots, Buffer("out", out, true));
          },
          py::arg("pool_address"), py::arg("slots"), py::arg("out"))
      .def(
          "scatter",
          [](const Layout& layout, uintptr_t pool_address, const Exact<uint32_t>& slots,
             const py::object& source) {
            return copy_here(layout, false, pool_address, slots, Buffer("source", source, false));
          },
          py::arg("pool_address"), py::arg("slots"), py::arg("source"));
}

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
  bind_sums(m);
  bind_layout(m);
  bind_peer_memory(m);
  bind_engine(m);
}

}  // namespace evoke
