// Requests to the copy engine: everything is checked before anything moves.
#include <stdexcept>
#include <string>
#include <utility>

#include "copy.hpp"
#include "copy_job.hpp"

namespace evoke {
namespace {

constexpr unsigned kMemoryShift = 56;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_length(const char* name, size_t length, size_t slots) {
  if (length == slots) return;
  refuse(std::string(name) + ": " + std::to_string(length) + " entries for " +
         std::to_string(slots) + " blocks");
}

}  // namespace

unsigned CopyEngine::add_memory(uint8_t* address, uint64_t bytes) {
  if (address == nullptr) refuse("address is 0");
  if (bytes == 0 || bytes >> kMemoryShift != 0) {
    refuse("length_bytes is " + std::to_string(bytes) + ", not 1 to 2^56 - 1");
  }
  const std::lock_guard lock(memories_mutex_);
  if (memories_.size() == kMaxMemories) refuse("address: 255 memories are registered already");
  memories_.push_back({address, bytes});
  return static_cast<unsigned>(memories_.size() - 1);
}

void CopyEngine::resolve(const char* name, const std::vector<uint64_t>& refs, uint64_t block_bytes,
                         std::vector<uint8_t*>& addresses) const {
  addresses.reserve(refs.size());
  const std::lock_guard lock(memories_mutex_);
  for (size_t i = 0; i < refs.size(); i++) {
    const uint64_t number = refs[i] >> kMemoryShift;
    const uint64_t offset = refs[i] & ((uint64_t{1} << kMemoryShift) - 1);
    const auto at = [&] { return std::string(name) + "[" + std::to_string(i) + "]: "; };
    if (number >= memories_.size()) {
      refuse(at() + "memory " + std::to_string(number) + " of " + std::to_string(memories_.size()));
    }
    const Memory& memory = memories_[number];
    if (offset > memory.bytes || memory.bytes - offset < block_bytes) {
      refuse(at() + "offset " + std::to_string(offset) + " and " + std::to_string(block_bytes) +
             " bytes are beyond the " + std::to_string(memory.bytes) + " of memory " +
             std::to_string(number));
    }
    addresses.push_back(memory.address + offset);
  }
}

std::shared_ptr<CopyEngine::Job> CopyEngine::make_job(Kind kind, Transfer transfer) const {
  const size_t blocks = transfer.slots.size();
  check_length("refs", transfer.refs.size(), blocks);
  check_slots(transfer.slots, transfer.pool->layout().slots());
  if (transfer.deadline_ms < 0) {
    refuse("deadline_ms is " + std::to_string(transfer.deadline_ms) + ", below 0");
  }
  if (transfer.fence != nullptr && transfer.fence_word >= kFenceWords) {
    refuse("fence_word is " + std::to_string(transfer.fence_word) + " of " +
           std::to_string(kFenceWords));
  }
  auto job = std::make_shared<Job>(kind, transfer.pool->layout().block_bytes(), blocks);
  constexpr int64_t kLongestMs = INT64_MAX / 4000000;  // beyond it there is no deadline
  if (transfer.deadline_ms > 0 && transfer.deadline_ms < kLongestMs) {
    job->deadline_ns = now_ns() + transfer.deadline_ms * 1000000;
  }
  resolve("refs", transfer.refs, job->block_bytes, job->stored);
  job->transfer = std::move(transfer);
  return job;
}

uint64_t CopyEngine::store(Transfer transfer) {
  return submit(make_job(Kind::kStore, std::move(transfer)));
}

uint64_t CopyEngine::fetch(Transfer transfer) {
  check_length("sums", transfer.sums.size(), transfer.slots.size());
  check_distinct(transfer.slots);
  return submit(make_job(Kind::kFetch, std::move(transfer)));
}

uint64_t CopyEngine::move(const std::vector<uint64_t>& source_refs,
                          const std::vector<uint64_t>& target_refs, uint64_t block_bytes,
                          std::vector<uint64_t> sums) {
  const size_t blocks = source_refs.size();
  check_length("target_refs", target_refs.size(), blocks);
  check_length("sums", sums.size(), blocks);
  if (block_bytes == 0 || block_bytes > kMaxBlockBytes) {
    refuse("length_bytes is " + std::to_string(block_bytes) + ", not 1 to " +
           std::to_string(kMaxBlockBytes));
  }
  auto job = std::make_shared<Job>(Kind::kMove, block_bytes, blocks);
  job->transfer.sums = std::move(sums);
  job->transfer.verify = true;
  resolve("source_refs", source_refs, block_bytes, job->stored);
  resolve("target_refs", target_refs, block_bytes, job->targets);
  return submit(std::move(job));
}

uint64_t CopyEngine::submit(std::shared_ptr<Job> job) {
  const uint64_t ticket = next_ticket_++;
  job->ticket = ticket;
  const size_t blocks = job->blocks;
  bool all = false;
  {
    const std::lock_guard lock(queue_mutex_);
    if (closing_) throw std::runtime_error("the copy engine is closed");
    in_flight_++;
    if (blocks > 0) {
      all = blocks > 1;
      queue_.push_back(std::move(job));
      queued_ = queue_.size();
    }
  }
  if (blocks == 0) {
    finish(std::move(job), 0);
  } else if (all) {
    queue_filled_.notify_all();
  } else {
    queue_filled_.notify_one();
  }
  return ticket;
}

}  // namespace evoke
