// Drives an order over a recorded stream of requests, as the daemon would be driven.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "order.hpp"

namespace evoke {

// Requests one after another: blocks of request i are ids[starts[i]] .. ids[starts[i + 1] - 1], in
// chain order. Every id is below `identities`.
struct Trace {
  std::span<const uint32_t> ids;
  std::span<const uint64_t> starts;  // one more than requests
  std::span<const double> now_s;     // per request
  uint32_t identities;
};

enum class Touch : uint8_t { kList, kTailFirst };
enum class Clock : uint8_t { kRequest, kAccess, kSecond };

struct Rules {
  uint64_t capacity_blocks;
  Touch touch = Touch::kTailFirst;
  Clock clock = Clock::kRequest;
  bool keep_state = true;  // what was learned survives eviction
  bool chains = false;     // tell the order who follows whom, so that only tails leave
  bool scored = true;      // the order reads LRFU keys
};

struct Counts {
  uint64_t accesses = 0;
  uint64_t hits = 0;
  uint64_t prefix_hits = 0;  // leading blocks that were resident when their request began
  uint64_t evictions = 0;
};

// Who left, in order; those of request i are ids[starts[i]] .. ids[starts[i + 1] - 1].
struct Victims {
  std::vector<uint32_t> ids;
  std::vector<uint64_t> starts = {0};
};

// Per access: hit when resident; else, when the cache is full, the worst resident leaves before the
// new block enters; then its columns are written. An order that admits first evicts after each
// request instead. `order` and `scores` start empty and belong to `identities`.
Counts simulate(const Trace& trace, const Rules& rules, Identities* identities, Scores* scores,
                Order* order, Victims* victims = nullptr);

}  // namespace evoke
