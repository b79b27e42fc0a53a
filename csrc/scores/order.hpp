// The contract of a policy: it learns what happened and names who should go. It never moves bytes.
//
// The daemon and the simulator drive the same objects:
//   request(r)         a request asked for these blocks (before its touches)
//   touched(id)        the columns of id have been written by this access
//   admit(id, parent)  id is resident now        leave(id)  it is not any more
//   worst(clock)       who should go first among those that may leave; choosing changes nothing
// A candidate is resident, not held, and has no resident child: so chains leave tail-first. Without
// parents (parent = kNoId throughout) every resident that is not held is a candidate.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "identities.hpp"

namespace evoke {

struct Request {
  std::span<const uint32_t> ids;  // blocks asked for, in chain order
  double clock;                   // in the clock unit that scores age in
  double now_s;                   // real time, for policies that rank by it
  // By block: the number of the request that uses it next, for orders that need the future.
  std::span<const uint32_t> next_use = {};
};
constexpr uint32_t kNeverUsed = 0xFFFFFFFF;

class Order {
 public:
  explicit Order(Identities* identities) : known_(identities) {}
  virtual ~Order() = default;
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

  // Called after the identities have grown.
  virtual void grow(size_t count);

  virtual void request(const Request&) {}
  void touched(uint32_t id) { on_touch(id); }
  void admit(uint32_t id, uint32_t parent);
  void leave(uint32_t id);
  // Of a resident; kNoId: it has no parent any more.
  void set_parent(uint32_t id, uint32_t parent);
  // The identity is dropped from memory; it is not resident. Its number may come back as another.
  virtual void forget(uint32_t) {}
  void hold(uint32_t id);
  void unhold(uint32_t id);

  // kNoId when nothing may leave.
  virtual uint32_t worst(double clock) = 0;
  // Up to count candidates, worst first, as if each had left before the next was chosen. Changes
  // nothing.
  std::vector<uint32_t> victims(size_t count, double clock);
  // As if it had left, until unchosen; last chosen, first unchosen. gone = false: it is only passed
  // over, and its parent stays covered.
  void choose(uint32_t id, bool gone = true);
  void unchoose(uint32_t id, bool gone = true);
  // True when `newcomer`, the last block of the newest request and not resident, is worth less than
  // worst(clock): it should not be admitted at its cost.
  virtual bool refuses(uint32_t newcomer, double clock);
  // A policy that ranks the newcomer with the rest admits whole requests and then evicts down to
  // the capacity; the others evict before each admission.
  virtual bool admits_first() const { return false; }
  // Only a recorded stream can drive it.
  virtual bool needs_future() const { return false; }
  // Its key rose without an access.
  virtual void rescored(uint32_t) {}
  // Runs a change after which it may rank lower than before.
  template <typename Change>
  void lower(uint32_t id, Change change) {
    const bool candidate = is_candidate(id);
    if (candidate) exit(id);
    change();
    if (candidate) enter(id);
  }
  // Keys have been rescaled.
  virtual void rebuild() {}

  const Identities& identities() const { return *known_; }
  size_t size() const { return flags_.size(); }  // that it has grown to
  bool resident(uint32_t id) const { return flags_[id] & kResident; }
  size_t residents() const { return residents_; }
  size_t candidates() const { return candidates_; }

 protected:
  // id became or ceased to be a candidate, with its columns as they are.
  virtual void enter(uint32_t id) = 0;
  virtual void exit(uint32_t id) = 0;
  // An access of id, candidate or not.
  virtual void on_touch(uint32_t) {}
  // id has left; not while victims() only tries it.
  virtual void on_leave(uint32_t) {}

  bool is_candidate(uint32_t id) const { return flags_[id] == kResident && children_[id] == 0; }
  uint32_t parent(uint32_t id) const { return parents_[id]; }
  Identities& known() { return *known_; }
  const Identities& known() const { return *known_; }

 private:
  static constexpr uint8_t kResident = 1;
  static constexpr uint8_t kHeld = 2;
  static constexpr uint8_t kChosen = 4;  // within victims()

  void set_flags(uint32_t id, uint8_t flags);
  void add_children(uint32_t id, int32_t change);

  Identities* known_;
  std::vector<uint8_t> flags_;
  std::vector<uint32_t> parents_;   // of residents
  std::vector<uint32_t> children_;  // resident ones, not chosen
  size_t residents_ = 0;
  size_t candidates_ = 0;
};

}  // namespace evoke
