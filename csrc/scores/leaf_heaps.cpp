#include "leaf_heaps.hpp"

namespace evoke {

void LeafHeaps::start(ClassSet set) {
  set_ = set;
  sizes_.clear();
  heaps_.clear();
  entries_ = 0;
  sweep_at_ = kSweepLeast;
}

size_t LeafHeaps::heap_of(uint32_t id) {
  const size_t classes = kClasses[static_cast<size_t>(set_)];
  const auto found = std::ranges::find(sizes_, learner_->bytes(id));
  const auto size = static_cast<size_t>(found - sizes_.begin());
  if (found == sizes_.end()) {
    sizes_.push_back(learner_->bytes(id));
    heaps_.resize(sizes_.size() * classes);
  }
  return size * classes + learner_->class_of(set_, id);
}

}  // namespace evoke
