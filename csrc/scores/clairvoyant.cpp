#include "clairvoyant.hpp"

#include <cassert>

namespace evoke {

void Clairvoyant::grow(size_t count) {
  if (count <= size()) return;
  Order::grow(count);
  next_use_.resize(count, kNeverUsed);
  depth_.resize(count, 0);
}

void Clairvoyant::request(const Request& request) {
  assert(request.next_use.size() == request.ids.size());
  for (size_t i = 0; i < request.ids.size(); ++i) {
    const uint32_t id = request.ids[i];
    const bool ranked = is_candidate(id);
    if (ranked) exit(id);
    next_use_[id] = request.next_use[i];
    depth_[id] = static_cast<uint32_t>(i);
    if (ranked) enter(id);
  }
}

uint32_t Clairvoyant::worst(double) {
  return order_.empty() ? kNoId : std::get<2>(*order_.rbegin());
}

}  // namespace evoke
