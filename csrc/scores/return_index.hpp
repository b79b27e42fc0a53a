// The policy `return_index`: chains give up their tails where keeping them has been worth the least
// by the byte-second, whatever the horizon.
//
// Source: our own research; docs/policy.md has the formula and what was measured.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "leaf_heaps.hpp"
#include "order.hpp"
#include "return_learner.hpp"
#include "return_shadows.hpp"

namespace evoke {

struct ReturnRules {
  uint64_t capacity_bytes;  // of the cache that is ordered; the shadows have the same
  bool choosing = true;     // by shadows; else the set of classes is the one below
  ClassSet set = ClassSet::kAge;
  double memory_requests = 500000;  // what was counted so many requests ago weighs half
};

// Ages are of Request.now_s, in seconds; sizes are Identities.bytes. A block that nobody asked for
// is filed when it becomes a candidate. Deterministic.
class ReturnIndex : public Order {
 public:
  // Throws std::invalid_argument that names the field and the number.
  ReturnIndex(Identities* identities, const ReturnRules& rules);

  void grow(size_t count) override;
  void request(const Request& request) override;
  void forget(uint32_t id) override;
  uint32_t worst(double clock) override;
  bool refuses(uint32_t newcomer, double clock) override;
  bool admits_first() const override { return true; }
  void rebuild() override;

  void resize(uint64_t capacity_bytes);
  // The classes in use now.
  ClassSet set() const { return leaves_.set(); }
  const ReturnLearner& learner() const { return learner_; }

 protected:
  void enter(uint32_t id) override;
  void exit(uint32_t id) override;

 private:
  uint32_t worst_but(uint32_t own);
  void use(ClassSet set);

  ReturnRules rules_;
  ReturnLearner learner_;
  LeafHeaps leaves_;
  std::unique_ptr<ReturnShadows> shadows_;
  uint32_t own_ = kNoId;     // the newest request's candidate
  uint32_t chosen_ = kNoId;  // by the last worst()
  uint32_t next_ = kNoId;    // its parent, of the same cohort: worth the same, so it follows
};

}  // namespace evoke
