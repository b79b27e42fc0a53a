// bind_table.cpp: TableView.
#pragma once

#include "bindings.hpp"

namespace evoke {

void bind_table(pybind11::module_& m);

}  // namespace evoke
