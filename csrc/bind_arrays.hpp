// Arguments of the copying half's bindings.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"

namespace evoke {

void bind_layout(pybind11::module_& m);  // bind_layout.cpp: Layout, xxh3_64, self_test

// Without forcecast: a number that does not fit is a TypeError, never another slot.
template <typename T>
using Exact = pybind11::array_t<T, pybind11::array::c_style>;

template <typename T>
std::vector<T> to_vector(const char* name, const Exact<T>& array) {
  if (array.ndim() != 1) {
    throw pybind11::value_error(std::string(name) + ": " + std::to_string(array.ndim()) +
                                " dimensions, not 1");
  }
  return {array.data(), array.data() + array.size()};
}

template <typename T>
Exact<T> to_array(const std::vector<T>& values) {
  return Exact<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

template <typename T>
std::span<const T> span_of(const Exact<T>& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

inline std::span<const uint8_t> span_of(const pybind11::bytes& bytes) {
  const std::string_view view = bytes;
  return {reinterpret_cast<const uint8_t*>(view.data()), view.size()};
}

// Any C-contiguous buffer, held as long as this lives.
class Buffer {
 public:
  Buffer(const char* name, const pybind11::object& object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) {
      return;
    }
    pybind11::error_already_set error;
    throw pybind11::value_error(std::string(name) + ": " + error.what());
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
inline int64_t to_number(const std::string& name, const pybind11::handle& value, bool is_signed) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (number == -1 && PyErr_Occurred() != nullptr) {
    pybind11::error_already_set error;
    throw pybind11::value_error(name + ": " + error.what());
  }
  if (overflow == 0 && (is_signed || number >= 0)) return number;
  throw pybind11::value_error(name + ": " + std::string(pybind11::str(value)) + " is out of range");
}

}  // namespace evoke
