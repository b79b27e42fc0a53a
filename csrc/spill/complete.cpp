// The second half of SpillStore: what ended.
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "store.hpp"

namespace evoke {
namespace {

constexpr uint64_t kCompactRecordsLeast = 4096;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void drain(const Fd& fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t bytes = read(fd.get(), &count, sizeof count);
}

}  // namespace

std::vector<SpillDone> SpillStore::take() {
  std::vector<SpillDone> done;
  if (closed_) return done;
  drain(eventfd_);
  drain(timer_);
  for (const IoJobPtr& job : engine_->take()) ended(*job, &done);
  for (const JournalDone& kept : journal_->take()) {
    const Transfer& transfer = transfers_.at(kept.ticket);
    // A block whose record could not be written yet is here all the same; journal_stats() says so.
    const int error = transfer.kind == SpillKind::kWrite ? 0 : kept.error;
    finish(kept.ticket, error == 0 ? SpillOutcome::kDone : SpillOutcome::kFailed, error, &done);
  }
  find_late(&done);
  set_timer();
  compact_if_large();
  return done;
}

void SpillStore::ended(IoJob& job, std::vector<SpillDone>* done) {
  Transfer& transfer = transfers_.at(job.ticket);
  job.is_write ? write_ended(job, transfer, done) : read_ended(job, transfer, done);
}

void SpillStore::write_ended(IoJob& job, Transfer& transfer, std::vector<SpillDone>* done) {
  const SlotEntry& entry = catalog_[transfer.slot];
  if (job.error != 0) {
    give_up(job.ticket);
    return finish(job.ticket, SpillOutcome::kFailed, job.error, done);
  }
  bytes_written_ += kPageBytes + pages_up(entry.length_bytes);
  std::erase_if(writing_, [&](const auto& item) { return item.second == job.ticket; });
  const uint32_t parent = entry.chain_index == 0
                              ? kNoSlot
                              : catalog_.find(entry.namespace_number, transfer.parent.data());
  catalog_.commit(transfer.slot, parent);
  journal_->append({place_record(transfer)}, job.ticket);  // finished when that is written
}

Record SpillStore::place_record(const Transfer& transfer) const {
  const SlotEntry& entry = catalog_[transfer.slot];
  Record record;
  record.kind = RecordKind::kPlace;
  record.parts = entry.parts;
  record.namespace_number = entry.namespace_number;
  record.segment = segment_of(transfer.slot);
  record.index = index_of(transfer.slot);
  record.generation = entry.generation;
  record.sum = entry.sum;
  record.length_bytes = entry.length_bytes;
  record.chain_index = entry.chain_index;
  record.key = entry.key;
  std::copy_n(transfer.parent.begin(), record.parent.size(), record.parent.begin());
  record.state = transfer.state;
  return record;
}

void SpillStore::read_ended(IoJob& job, Transfer& transfer, std::vector<SpillDone>* done) {
  const uint32_t slot = transfer.slot;
  const bool is_there = catalog_.is_live(slot);  // a slot that is read has one block meanwhile
  const bool is_corrupt = job.corrupt || job.error == ENODATA;
  if (job.error == 0) bytes_read_ += pages_up(catalog_[slot].length_bytes);
  if (is_corrupt) integrity_failures_++;
  if (is_there && is_corrupt) {
    std::vector<Record> records;
    erase_one(slot, &records);
    journal_->append(records, 0);
  } else if (is_there && job.error == 0) {
    catalog_[slot].verified = true;
  }
  catalog_.end_read(slot);
  transfer.sums = std::move(job.sums);
  const SpillOutcome failed = is_corrupt ? SpillOutcome::kCorrupt : SpillOutcome::kFailed;
  const bool is_good = job.error == 0 && !is_corrupt;
  finish(job.ticket, is_good ? SpillOutcome::kDone : failed, is_corrupt ? 0 : job.error, done);
}

void SpillStore::give_up(uint64_t ticket) {
  const Transfer& transfer = transfers_.at(ticket);
  if (transfer.kind == SpillKind::kRead) return catalog_.end_read(transfer.slot);
  std::erase_if(writing_, [&](const auto& item) { return item.second == ticket; });
  catalog_.give_back(transfer.slot);
}

void SpillStore::finish(uint64_t ticket, SpillOutcome outcome, int error,
                        std::vector<SpillDone>* done) {
  const auto at = transfers_.find(ticket);
  Transfer& transfer = at->second;
  done->push_back(
      {ticket, transfer.kind, outcome, error, true, transfer.slot, std::move(transfer.sums)});
  transfers_.erase(at);
}

void SpillStore::find_late(std::vector<SpillDone>* done) {
  const int64_t now = now_ms();
  std::vector<uint64_t> late;
  for (const auto& [ticket, transfer] : transfers_) {
    if (transfer.deadline_ms != 0 && transfer.deadline_ms <= now) late.push_back(ticket);
  }
  std::sort(late.begin(), late.end());
  for (const uint64_t ticket : late) {
    Transfer& transfer = transfers_.at(ticket);
    if (engine_->cancel(ticket) != nullptr) {
      give_up(ticket);
      finish(ticket, SpillOutcome::kCancelled, 0, done);
      continue;
    }
    transfer.deadline_ms = 0;
    done->push_back({ticket, transfer.kind, SpillOutcome::kLate, 0, false, transfer.slot, {}});
  }
}

void SpillStore::set_timer() {
  int64_t first = 0;
  for (const auto& [ticket, transfer] : transfers_) {
    if (transfer.deadline_ms == 0) continue;
    if (first == 0 || transfer.deadline_ms < first) first = transfer.deadline_ms;
  }
  itimerspec when{};
  when.it_value.tv_sec = first / 1000;
  when.it_value.tv_nsec = first % 1000 * 1'000'000;
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

void SpillStore::compact_if_large() {
  const JournalStats stats = journal_->stats();
  if (stats.compactions != compactions_seen_) {
    compactions_seen_ = stats.compactions;
    compact_above_records_ = 0;
  }
  const uint64_t records = stats.records_in_file;
  if (records <= compact_above_records_) return;
  compact_above_records_ = 2 * catalog_.stats().blocks + kCompactRecordsLeast;
  if (records <= compact_above_records_) return;
  journal_->compact(keep());
  compact_above_records_ = records + records / 2;  // until it is done, or to try again
}

void SpillStore::inject(const std::string& what, int error, int delay_ms, int64_t operations) {
  IoFault* fault = what == "read"      ? &engine_->read_fault
                   : what == "write"   ? &engine_->write_fault
                   : what == "journal" ? &journal_->fault
                                       : nullptr;
  if (fault == nullptr) {
    throw std::invalid_argument("what: '" + what + "' is not read, write or journal");
  }
  fault->set(error, delay_ms, operations);
}

bool SpillStore::close(int wait_ms) {
  if (closed_) return true;
  const int64_t end_ms = now_ms() + wait_ms;
  const bool engine_ended = IoEngine::close(engine_, wait_ms);
  std::vector<SpillDone> done;
  for (const IoJobPtr& job : engine_->take()) ended(*job, &done);
  journal_->sync(0);
  const auto left_ms = static_cast<int>(std::max<int64_t>(end_ms - now_ms(), 1));
  const bool journal_ended = journal_->close(engine_ended ? std::max(left_ms, wait_ms) : left_ms);
  closed_ = true;
  if (engine_ended && journal_ended) {
    files_->close();
    return true;
  }
  // Threads that are stuck in the kernel still use these: numbers of closed files could come back.
  new std::shared_ptr<SpillFiles>(files_);
  eventfd_.release();
  return false;
}

}  // namespace evoke
