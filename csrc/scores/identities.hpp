// What is remembered of blocks, resident or gone: one number per identity, one column per fact.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace evoke {

constexpr uint32_t kNoId = 0xFFFFFFFF;
constexpr double kNeverKey = -std::numeric_limits<double>::infinity();

// Columns by identity number. A policy reads those that its formula names; Scores writes them.
struct Identities {
  std::vector<double> key;        // LRFU: K with ln score = K - clock * lambda; -inf before any use
  std::vector<double> at_clock;   // of the last access
  std::vector<uint32_t> seq;      // of the last access: rises with each, ties of scores fall to it
  std::vector<uint16_t> count;    // accesses, saturating
  std::vector<uint8_t> role;      // see docs/policy.md; 0 is none
  std::vector<uint8_t> priority;  // in sixteenths: 16 is 1.0

  std::vector<uint32_t> bytes;  // of the block, at least 1; 1 where blocks are what is counted

  size_t size() const { return key.size(); }
  // Room for identities below count; new ones know nothing.
  void grow(size_t count_wanted);
  void reset(uint32_t id);
  // As a new one.
  void clear(uint32_t id);
  // Clocks read `clock` and from now on `next`; time that has passed keeps its proportion to it.
  void change_clock(double clock, double next);
  // An access.
  void note(uint32_t id, double clock, uint32_t seq_now) {
    at_clock[id] = clock;
    seq[id] = seq_now;
    count[id] = static_cast<uint16_t>(count[id] + (count[id] != 0xFFFF));
  }
};

constexpr size_t kColumnBytes = 2 * sizeof(double) + 2 * sizeof(uint32_t) + sizeof(uint16_t) + 2;

// ln(e^a + e^b), the larger first: the form that the definition of the order fixes.
inline double log_add(double a, double b) {
  const double high = a < b ? b : a;
  const double low = a < b ? a : b;
  return low == kNeverKey ? high : high + std::log1p(std::exp(low - high));
}

// The stage `score` of the pipeline: score(t) = a x(t) + (1-a) score(t-1) per clock unit (LRFU, Lee
// et al., IEEE Trans. Computers 2001, as an exponential moving average), kept lazily: the order of
// two keys never changes between accesses.
class Scores {
 public:
  // alpha in (0, 1). weighted: keys include ln alpha, so that exp(K - t lambda) is the score
  // itself. Throws std::invalid_argument.
  Scores(Identities* identities, double alpha, bool weighted);

  void touch(uint32_t id, double signal, double clock, uint32_t seq) {
    const double unit = offset_ + clock * lambda_;
    const double added = signal == 1.0 ? unit : unit + std::log(signal);
    double& key = identities_->key[id];
    // Neighbours in a chain have mostly the same history: the same sum again.
    if (key != last_.key || added != last_.added) last_ = {key, added, log_add(key, added)};
    key = last_.sum;
    note(id, clock, seq);
  }
  // Without a score: for orders that use recency and counts only.
  void note(uint32_t id, double clock, uint32_t seq) { identities_->note(id, clock, seq); }
  double log_score(uint32_t id, double clock) const {
    return identities_->key[id] - offset_ + log_alpha_ - clock * lambda_;
  }
  // The key of a block whose whole score is e^log_score at clock.
  double key_of(double log_score, double clock) const {
    return log_score - log_alpha_ + offset_ + clock * lambda_;
  }
  // Every key as if alpha had always been this one from now on: scores at `clock` stay. next: what
  // the clock reads from now on, where its unit changes too.
  void rescale(double alpha, double clock) { rescale(alpha, clock, clock); }
  void rescale(double alpha, double clock, double next);

  double lambda() const { return lambda_; }
  size_t identities() const { return identities_->size(); }

 private:
  Identities* identities_;
  double lambda_ = 0;
  double log_alpha_ = 0;
  double offset_ = 0;  // ln alpha when weighted
  bool weighted_;
  struct {
    double key = kNeverKey;
    double added = kNeverKey;
    double sum = kNeverKey;
  } last_;  // the sum that touch() made last
};

}  // namespace evoke
