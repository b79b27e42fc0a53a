// The order of the product (1 - score) * (1 - e^(-beta idle)): the highest leaves first. Two blocks
// can change places while neither is touched, so no heap holds it. But the product falls with the
// key and with the last access, and both stand still between accesses: a tree whose nodes keep the
// least of each bounds what is below it, and the search goes only where the bound beats the best
// block found so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "order.hpp"

namespace evoke {

class Product : public Order {
 public:
  // rescaled: with alpha / (score + alpha) for 1 - score. One access lifts a score to alpha, far
  // below 1, so that 1 - score hardly differs between blocks; this form makes it a half.
  // Reads keys that include ln alpha. Throws std::invalid_argument.
  Product(Identities* identities, double alpha, double beta, bool rescaled);

  void grow(size_t count) override;
  uint32_t worst(double clock) override;
  void rebuild() override;
  void set_alpha(double alpha);

  // What worst() ranks by: higher leaves first.
  double priority(double key, double at_clock, double clock) const;

 protected:
  void enter(uint32_t id) override;
  void exit(uint32_t id) override;

 private:
  struct Least {
    double key;
    double at_clock;
    uint32_t seq;
  };
  struct Best {
    uint32_t id = kNoId;
    double priority = 0;
  };

  static const Least kNobody;
  static constexpr uint32_t kNoSlot = 0xFFFFFFFF;

  static Least lesser(const Least& a, const Least& b);
  Least of(uint32_t id) const;
  void put(size_t slot, const Least& least);
  void add(uint32_t id);
  void compact();
  Best search(double clock) const;
  void consider(size_t slot, double clock, Best* best) const;
  bool is_stale(uint32_t id) const;

  double lambda_;
  double alpha_;
  double beta_;
  bool rescaled_;
  // An implicit binary tree: node i has the children 2i and 2i + 1, leaf `slot` is width_ + slot.
  // Slots are given out in the order of entry, so that neighbours were used at about one time. A
  // leaf may be stale on the low side, as accesses do not come here: it is settled when it is best.
  std::vector<Least> tree_;
  std::vector<uint32_t> ids_;    // by slot
  std::vector<uint32_t> slots_;  // by id
  size_t width_ = 0;
  size_t next_slot_ = 0;
};

}  // namespace evoke
