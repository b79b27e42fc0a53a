#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "keys.hpp"
#include "sha256.hpp"

namespace py = pybind11;

namespace evoke {
namespace {

// Without forcecast: a wider or signed array is a TypeError, never a truncated token id.
using TokenIds = py::array_t<uint32_t, py::array::c_style>;

Sha256Compress compress_for(bool portable) {
  return portable ? sha256_compress_portable : sha256_compress_best();
}

py::bytes sha256_bytes(const py::bytes& data, bool portable) {
  const std::string_view view = data;
  Digest digest;
  {
    const py::gil_scoped_release unlocked;
    digest =
        sha256(reinterpret_cast<const uint8_t*>(view.data()), view.size(), compress_for(portable));
  }
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

py::bytes chain_keys_bytes(const py::bytes& namespace_id, const TokenIds& token_ids,
                           size_t block_tokens, const py::bytes& parent,
                           const std::vector<std::pair<size_t, py::bytes>>& extras, bool portable) {
  if (token_ids.ndim() != 1) {
    throw py::value_error("token_ids: " + std::to_string(token_ids.ndim()) +
                          " dimensions, expected 1");
  }
  const std::string_view namespace_view = namespace_id;
  const std::string_view parent_view = parent;
  const std::span<const uint32_t> tokens(token_ids.data(), static_cast<size_t>(token_ids.size()));
  std::vector<Extra> extra_views;
  for (const auto& [block, bytes] : extras) extra_views.push_back({block, bytes});
  std::vector<uint8_t> keys;
  {
    const py::gil_scoped_release unlocked;
    keys = chain_keys(namespace_view, tokens, block_tokens, parent_view, std::move(extra_views),
                      compress_for(portable));
  }
  return {reinterpret_cast<const char*>(keys.data()), keys.size()};
}

}  // namespace

void bind_hashing(py::module_& m) {
  m.def("sha256", &sha256_bytes, py::arg("data"), py::arg("portable") = false);
  m.def("chain_keys", &chain_keys_bytes, py::arg("namespace_id"), py::arg("token_ids"),
        py::arg("block_tokens"), py::arg("parent"), py::arg("extras"), py::arg("portable") = false);
}

}  // namespace evoke
