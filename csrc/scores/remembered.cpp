#include "remembered.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "by_seq.hpp"

namespace evoke {

static_assert(std::endian::native == std::endian::little);

RememberedPart dump_part(const Ranker& ranker, double clock, size_t first, size_t count) {
  const Identities& known = ranker.known();
  const IdentityTable& table = ranker.table();
  const size_t end = first + std::min(count, table.end() - std::min(first, table.end()));
  RememberedPart part;
  for (size_t at = first; at < end; ++at) {
    const auto id = static_cast<uint32_t>(at);
    if (!table.live(id) || known.count[id] == 0) continue;
    part.records.push_back({table.tag(id), ranker.scores().log_score(id, clock),
                            std::max(0.0, clock - known.at_clock[id]), known.bytes[id],
                            known.count[id], known.role[id], known.priority[id]});
    part.seqs.push_back(known.seq[id]);
  }
  return part;
}

std::vector<RememberedRecord> dump_remembered(const Ranker& ranker, double clock) {
  const RememberedPart all = dump_part(ranker, clock, 0, ranker.table().end());
  std::vector<uint32_t> order(all.seqs.size());
  std::iota(order.begin(), order.end(), 0u);
  sort_by_seq(&order, [&all](uint32_t at) { return all.seqs[at]; });
  std::vector<RememberedRecord> records;
  records.reserve(order.size());
  for (const uint32_t at : order) records.push_back(all.records[at]);
  return records;
}

namespace {

void check(const RememberedRecord& record, size_t at) {
  const char* wrong = nullptr;
  if (std::isnan(record.log_score) || record.log_score > 700) wrong = "log_score";
  if (!(record.idle >= 0 && std::isfinite(record.idle))) wrong = "idle";
  if (record.bytes == 0) wrong = "bytes";
  if (record.count == 0) wrong = "count";
  if (!wrong) return;
  throw std::invalid_argument("records[" + std::to_string(at) + "]." + wrong +
                              " is nothing that is written");
}

}  // namespace

size_t load_remembered(Ranker* ranker, std::span<const RememberedRecord> records, double clock,
                       double elapsed, size_t rows_most) {
  if (!(elapsed >= 0 && std::isfinite(elapsed))) {
    throw std::invalid_argument("elapsed: " + std::to_string(elapsed) + " is not at least 0");
  }
  for (size_t i = 0; i < records.size(); ++i) check(records[i], i);
  ranker->expect_rows(rows_most);
  Identities& known = ranker->known();
  const double lambda = ranker->scores().lambda();
  // The most recent ones, where a smaller table cannot take all.
  const size_t first = records.size() - std::min(records.size(), ranker->limit());
  size_t taken = 0;
  for (const RememberedRecord& record : records.subspan(first)) {
    if (ranker->table().find(record.tag) != kNoId) continue;
    const uint32_t id = ranker->table().intern(record.tag, record.bytes);
    known.key[id] = ranker->scores().key_of(record.log_score - elapsed * lambda, clock);
    known.at_clock[id] = clock - record.idle - elapsed;
    known.seq[id] = ranker->next_seq();
    known.count[id] = record.count;
    known.role[id] = record.role;
    known.priority[id] = record.priority;
    ++taken;
  }
  ranker->grow();
  ranker->trim();
  return taken;
}

}  // namespace evoke
