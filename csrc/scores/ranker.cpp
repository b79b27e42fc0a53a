#include "ranker.hpp"

#include <algorithm>
#include <cassert>

#include "by_seq.hpp"

namespace evoke {
namespace {

constexpr size_t kKeyBytes = 32;
// Sequence numbers begin anew before they run out, with room for the accesses of one call.
constexpr uint32_t kSeqMost = 0xF0000000;
constexpr size_t kAhead = 8;  // of the identity at hand, whose place is asked for
// Of other namespaces, in one choice: a millisecond or so.
constexpr size_t kPassedMost = 4096;

}  // namespace

Ranker::Ranker(Identities* known, Scores* scores, const RankerRules& rules)
    : known_(*known), scores_(*scores), rules_(rules), table_(known) {}

void Ranker::set_rules(const RankerRules& rules) {
  assert(rules.tier == rules_.tier);
  rules_ = rules;
  trim();
}

void Ranker::use(Order* order) {
  order_ = order;
  grow();
  std::vector<uint32_t> ranked;
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].ranked) ranked.push_back(row);
  }
  sort_by_seq(&ranked, [this](uint32_t row) { return known_.seq[rows_[row].id]; });
  for (const uint32_t row : ranked) {
    rows_[row].ranked = false;
    rank(row);
  }
}

void Ranker::rescale(double alpha, double clock, double next) {
  scores_.rescale(alpha, clock, next);
  if (next != clock) known_.change_clock(clock, next);
  if (order_) order_->rebuild();
}

void Ranker::set_space(uint32_t number, const TagSecret& secret, uint32_t block_bytes) {
  if (number >= spaces_.size()) spaces_.resize(number + 1);
  spaces_[number] = {secret, block_bytes};
}

size_t Ranker::limit() const {
  const auto wanted =
      static_cast<size_t>(rules_.remembered_factor * static_cast<double>(count_most_));
  return std::max(rules_.remembered_least, wanted);
}

void Ranker::grow() {
  const size_t count = table_.end();
  if (row_of_.size() < count) {
    row_of_.resize(count, kNoRow);
    awaited_.resize(count, 0);
    asked_in_.resize(count, 0);
  }
  if (order_ && order_->size() < count) order_->grow(count);
}

void Ranker::trim() {
  while (table_.size() > limit()) {
    // Without a row it is no resident, and no resident's parent.
    const uint32_t id = table_.stalest([this](uint32_t one) { return row_of_[one] == kNoRow; });
    if (id == kNoId) return;
    if (order_) order_->forget(id);
    awaited_[id] = 0;
    table_.give_up(id);
  }
}

void Ranker::touch(uint32_t id, double clock) {
  scores_.touch(id, 1.0, clock, next_seq());
  if (order_) order_->touched(id);
}

void Ranker::renumber_when_due() {
  if (seq_ < kSeqMost) return;
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < table_.end(); ++id) {
    if (table_.live(id)) ids.push_back(id);
  }
  sort_by_seq(&ids, [this](uint32_t id) { return known_.seq[id]; });
  seq_ = 0;
  for (const uint32_t id : ids) known_.seq[id] = next_seq();
  if (order_) order_->rebuild();
}

// ---------------------------------------------------------------- what the index noted
void Ranker::apply(std::span<const Change> changes, std::span<const uint8_t> keys, double clock) {
  renumber_when_due();
  for (const Change& change : changes) {
    if (change.kind == ChangeKind::kStored) {
      assert(keys.size() >= kKeyBytes);
      store(change, keys.first(kKeyBytes));
      keys = keys.subspan(kKeyBytes);
    } else {
      note(change, clock);
    }
  }
  settle(clock);
  trim();
}

void Ranker::store(const Change& change, std::span<const uint8_t> key) {
  if (change.row >= rows_.size()) rows_.resize(change.row + 1);
  Place& place = rows_[change.row];
  assert(place.id == kNoId && change.other < spaces_.size());
  const Tag tag = tag_of(spaces_[change.other].secret, key.data());
  const uint32_t id = table_.intern(tag, change.bytes);
  place = {id, kNoRow, change.other, false, change.tier == rules_.tier};
  grow();
  assert(row_of_[id] == kNoRow);
  row_of_[id] = change.row;
  count_most_ = std::max(count_most_, ++count_);
  unsettled_.push_back(change.row);
}

void Ranker::note(const Change& change, double clock) {
  Place& place = rows_[change.row];
  assert(place.id != kNoId);
  if (change.kind == ChangeKind::kLinked) {
    place.parent = change.other;
    // Who is not settled yet is admitted with its parent, which is one step less.
    if (is_ranked(place.id)) order_->set_parent(place.id, rows_[change.other].id);
    return;
  }
  settle(clock);
  switch (change.kind) {
    case ChangeKind::kErased:
      erase(change.row);
      break;
    case ChangeKind::kUnlinked:
      place.parent = kNoRow;
      if (is_ranked(place.id)) order_->set_parent(place.id, kNoId);
      break;
    case ChangeKind::kMoved:
      if (place.ranked != (change.tier == rules_.tier)) {
        place.ranked ? unrank(change.row) : rank(change.row);
      }
      break;
    case ChangeKind::kHeld:
    case ChangeKind::kLoose:
      place.held = change.kind == ChangeKind::kHeld;
      if (is_ranked(place.id)) place.held ? order_->hold(place.id) : order_->unhold(place.id);
      break;
    default:
      assert(false);
  }
}

// Pieces of chains are admitted in the order in which they came, the blocks of each from the last
// to the first, as a request would have touched them.
void Ranker::settle(double clock) {
  for (size_t begin = 0, end; begin < unsettled_.size(); begin = end) {
    end = begin + 1;
    while (end < unsettled_.size() && rows_[unsettled_[end]].parent == unsettled_[end - 1]) ++end;
    for (size_t i = end; i-- > begin;) admit(unsettled_[i], clock);
  }
  unsettled_.clear();
}

void Ranker::admit(uint32_t row, double clock) {
  const uint32_t id = rows_[row].id;
  if (!awaited_[id]) touch(id, clock);
  awaited_[id] = 0;
  if (!rows_[row].ranked) return;
  rows_[row].ranked = false;
  rank(row);
}

void Ranker::erase(uint32_t row) {
  const uint32_t id = rows_[row].id;
  unrank(row);
  rows_[row] = {};
  row_of_[id] = kNoRow;
  --count_;
  if (!rules_.keep_state) known_.reset(id);
}

void Ranker::rank(uint32_t row) {
  Place& place = rows_[row];
  place.ranked = true;
  if (!order_) return;
  order_->admit(place.id, place.parent == kNoRow ? kNoId : rows_[place.parent].id);
  if (place.held) order_->hold(place.id);
}

void Ranker::unrank(uint32_t row) {
  if (is_ranked(rows_[row].id)) order_->leave(rows_[row].id);
  rows_[row].ranked = false;
}

// ---------------------------------------------------------------- accesses
std::vector<uint32_t> Ranker::intern_all(uint32_t space, std::span<const uint8_t> keys) {
  assert(space < spaces_.size() && keys.size() % kKeyBytes == 0);
  if (++requests_ == 0) {
    std::fill(asked_in_.begin(), asked_in_.end(), 0);
    requests_ = 1;
  }
  std::vector<Tag> tags(keys.size() / kKeyBytes);
  tags_of(spaces_[space].secret, keys.data(), tags.size(), tags.data());
  std::vector<uint32_t> ids;
  ids.reserve(tags.size());
  for (size_t i = 0; i < tags.size(); ++i) {
    if (i + kAhead < tags.size()) table_.prefetch(tags[i + kAhead]);
    ids.push_back(table_.intern(tags[i], spaces_[space].block_bytes));
  }
  grow();
  std::erase_if(ids, [this](uint32_t id) {  // a key that is listed twice
    const bool again = asked_in_[id] == requests_;
    asked_in_[id] = requests_;
    return again;
  });
  return ids;
}

void Ranker::asked(uint32_t space, std::span<const uint8_t> keys, double clock, double now_s) {
  renumber_when_due();
  const std::vector<uint32_t> ids = intern_all(space, keys);
  if (order_) order_->request({ids, clock, now_s});
  for (size_t i = ids.size(); i-- > 0;) {
    touch(ids[i], clock);
    if (row_of_[ids[i]] == kNoRow) awaited_[ids[i]] = 1;
  }
  trim();
}

void Ranker::used(std::span<const uint32_t> rows, double clock) {
  renumber_when_due();
  const uint32_t before = seq_;
  for (size_t i = rows.size(); i-- > 0;) {
    touch(rows_[rows[i]].id, clock);
    freshen_ancestors(rows[i], i > 0 ? rows[i - 1] : kNoRow, before, clock);
  }
}

// From the parent up to who comes next anyway, or has come already: a walk is never walked twice.
void Ranker::freshen_ancestors(uint32_t row, uint32_t until, uint32_t before, double clock) {
  for (uint32_t at = rows_[row].parent; at != kNoRow && at != until; at = rows_[at].parent) {
    const uint32_t id = rows_[at].id;
    if (known_.seq[id] > before) return;
    known_.at_clock[id] = clock;
    known_.seq[id] = next_seq();
    if (order_) order_->touched(id);
  }
}

// ---------------------------------------------------------------- choosing
Room Ranker::make_room(size_t count, uint64_t bytes_wanted, int64_t space, uint32_t newcomers_space,
                       std::span<const uint8_t> newcomers, double clock) {
  struct Choice {
    uint32_t id;
    bool gone;
  };
  Room room;
  std::vector<Choice> choices;
  std::vector<uint32_t> waiting;  // newcomers that are remembered, or kNoId
  for (size_t at = 0; at < newcomers.size(); at += kKeyBytes) {
    waiting.push_back(table_.find(tag_of(spaces_[newcomers_space].secret, newcomers.data() + at)));
  }
  uint64_t bytes = 0;
  size_t passed = 0;
  while (room.rows.size() < count || bytes < bytes_wanted) {
    const uint32_t id = order_->worst(clock);
    if (id == kNoId) break;
    const uint32_t row = row_of_[id];
    const bool gone = space < 0 || rows_[row].space == space;
    if (gone && !waiting.empty() && waiting.back() != kNoId && !order_->resident(waiting.back()) &&
        order_->refuses(waiting.back(), clock)) {
      const uint32_t less = known_.bytes[waiting.back()];
      waiting.pop_back();
      ++room.refused;
      count -= count > 0;
      bytes_wanted -= std::min<uint64_t>(bytes_wanted, less);
      continue;
    }
    if (!gone && ++passed > kPassedMost) {
      room.is_short = true;
      break;
    }
    if (gone) {
      room.rows.push_back(row);
      bytes += known_.bytes[id];
    }
    choices.push_back({id, gone});
    order_->choose(id, gone);
  }
  for (size_t i = choices.size(); i-- > 0;) order_->unchoose(choices[i].id, choices[i].gone);
  return room;
}

}  // namespace evoke
