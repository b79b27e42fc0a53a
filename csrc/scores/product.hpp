// The order of the product (1 - score) * (1 - e^(-beta idle)): the highest leaves first. Two blocks
// can change places while neither is touched, so no heap holds it. But the product falls with the
// key and with the last access, and both stand still between accesses: a tree whose nodes keep the
// least of each bounds what is below it, and the search opens the node with the highest bound first
// until that is a block. At one time of the clock the next search goes on where this one ended.
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
    uint32_t slot;  // whose all three are: it goes first of what is below; kNoSlot: nobody's
  };
  struct Bound {
    double most;  // of what is below: nothing there ranks higher
    uint32_t seq;
    uint32_t node;
    bool is_as(const Bound& other) const { return most == other.most && seq == other.seq; }
    // Of std::*_heap, whose front is the greatest.
    bool operator<(const Bound& other) const {
      return most != other.most ? most < other.most : seq > other.seq;
    }
  };
  struct Power {  // the last one, as neighbours were mostly used at one time
    double of = 0;
    double less_one = 0;
    double operator()(double exponent);
  };

  static const Least kNobody;
  static constexpr uint32_t kNoSlot = 0xFFFFFFFF;

  static Least lesser(const Least& a, const Least& b);
  Least of(uint32_t id) const;
  bool pull(size_t node);  // from its children; whether it has changed
  void put(size_t slot, const Least& least);
  void freshen(size_t node);
  void add(uint32_t id);
  void compact();
  Bound bound(size_t node) const;
  void open(size_t node);
  bool is_stale(uint32_t id) const;

  double lambda_;
  double alpha_;
  double beta_;
  bool rescaled_;
  // An implicit binary tree: node i has the children 2i and 2i + 1, leaf `slot` is width_ + slot.
  // Slots are given out in the order of entry, so that neighbours were used at about one time. A
  // node may be stale on the low side, as accesses and exits stay below it: it is settled at the
  // front.
  std::vector<Least> tree_;
  std::vector<uint32_t> ids_;    // by slot
  std::vector<uint32_t> slots_;  // by id
  size_t width_ = 0;
  size_t next_slot_ = 0;
  // A heap: every slot that is in use is in it or below one of it. A bound is never too low at
  // clock_; too high it may be, as accesses and exits do not come here.
  std::vector<Bound> front_;
  double clock_ = 0;
  mutable Power score_;
  mutable Power idle_;
};

}  // namespace evoke
