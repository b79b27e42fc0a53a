#include "journal.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace evoke {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kWaitingBytesMax = size_t{8} << 20;

bool is_kept(const Record& record, const Keep& keep) {
  if (record.kind != RecordKind::kPlace || record.segment >= keep.generations.size()) return false;
  const std::vector<uint64_t>& slots = keep.generations[record.segment];
  return record.index < slots.size() && slots[record.index] == record.generation;
}

// Collects records and writes them in large pieces.
class RecordWriter {
 public:
  explicit RecordWriter(int fd) : fd_(fd), offset_(kPageBytes) { bytes_.reserve(kChunkBytes); }
  int add(const Record& record) {
    bytes_.resize(bytes_.size() + kRecordBytes);
    encode_record(record, bytes_.data() + bytes_.size() - kRecordBytes);
    records_++;
    return bytes_.size() >= kChunkBytes ? flush() : 0;
  }
  int flush() {
    const int error = write_all(fd_, bytes_.data(), bytes_.size(), offset_);
    offset_ += bytes_.size();
    bytes_.clear();
    return error;
  }
  uint64_t records() const { return records_; }

 private:
  int fd_;
  uint64_t offset_;
  uint64_t records_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace

int rewrite_index(SpillFiles& files, const Keep& keep, uint64_t* records) {
  const Fd old = files.open_index();
  Fd file = files.new_index();
  if (file.get() < 0) return errno;
  std::vector<uint8_t> chunk(kChunkBytes);
  encode_index_header(keep.header, chunk.data());
  int error = write_all(file.get(), chunk.data(), kPageBytes, 0);
  RecordWriter writer(file.get());
  for (const Record& record : keep.preface) error = error != 0 ? error : writer.add(record);
  for (uint64_t offset = kPageBytes; old.get() >= 0 && error == 0;) {
    const int64_t bytes = read_all(old.get(), chunk.data(), chunk.size(), offset);
    if (bytes < 0) return static_cast<int>(-bytes);
    Record record;
    for (int64_t at = 0; at + static_cast<int64_t>(kRecordBytes) <= bytes; at += kRecordBytes) {
      if (!decode_record(chunk.data() + at, &record) || !is_kept(record, keep)) continue;
      error = error != 0 ? error : writer.add(record);
    }
    if (bytes < static_cast<int64_t>(chunk.size())) break;
    offset += static_cast<uint64_t>(bytes);
  }
  if (error == 0) error = writer.flush();
  *records = writer.records();
  return error != 0 ? error : files.install_index(std::move(file));
}

Journal::Journal(std::shared_ptr<SpillFiles> files, uint64_t records_in_file, int eventfd)
    : files_(std::move(files)),
      eventfd_(eventfd),
      end_(kPageBytes + records_in_file * kRecordBytes) {
  stats_.records_in_file = records_in_file;
}

void Journal::start() {
  const std::lock_guard lock(mutex_);
  running_ = true;
  thread_ = std::thread([self = shared_from_this()] {
    self->run();
    const std::lock_guard ended(self->mutex_);
    self->running_ = false;
    self->ended_.notify_all();
  });
}

void Journal::ask(uint64_t ticket, Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(ticket, std::move(work));
  }
  asked_.notify_one();
}

void Journal::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    asked_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto [ticket, work] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const int error = work();
    lock.lock();
    stats_.last_error = error;
    if (error != 0) stats_.errors++;
    if (ticket == 0) continue;
    done_.push_back({ticket, error});
    lock.unlock();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
  }
}

void Journal::append(const std::vector<Record>& records, uint64_t ticket) {
  std::vector<uint8_t> bytes(records.size() * kRecordBytes);
  for (size_t i = 0; i < records.size(); i++) {
    encode_record(records[i], bytes.data() + i * kRecordBytes);
  }
  ask(ticket, [this, bytes = std::move(bytes)] { return do_append(bytes); });
}

int Journal::do_append(const std::vector<uint8_t>& bytes) {
  if (waiting_.size() + bytes.size() > kWaitingBytesMax) {  // a record that is lost is a miss
    const std::lock_guard lock(mutex_);
    stats_.records_lost += bytes.size() / kRecordBytes;
    return ENOBUFS;
  }
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
  return write_waiting();
}

int Journal::write_waiting() {
  // Always at the same place until it succeeds: records stay aligned whatever half a write left.
  int error = waiting_.empty() ? 0 : fault.strike();
  if (error == 0) {
    error = write_all(files_->index_fd(), waiting_.data(), waiting_.size(), end_);
  }
  const std::lock_guard lock(mutex_);
  if (error == 0) {
    const uint64_t records = waiting_.size() / kRecordBytes;
    end_ += waiting_.size();
    stats_.records_written += records;
    stats_.records_in_file += records;
    stats_.bytes_written += waiting_.size();
    waiting_.clear();
  }
  stats_.records_waiting = waiting_.size() / kRecordBytes;
  return error;
}

void Journal::sync(uint64_t ticket) {
  ask(ticket, [this] { return do_sync(); });
}

int Journal::do_sync() {
  int error = fault.strike();
  if (error == 0) error = files_->sync_segments();
  if (error == 0) error = write_waiting();
  if (error == 0 && fdatasync(files_->index_fd()) != 0) error = errno;
  const std::lock_guard lock(mutex_);
  stats_.syncs++;
  return error;
}

void Journal::compact(Keep keep) {
  ask(0, [this, keep = std::move(keep)] { return do_compact(keep); });
}

int Journal::do_compact(const Keep& keep) {
  int error = write_waiting();
  uint64_t records = 0;
  if (error == 0) error = rewrite_index(*files_, keep, &records);
  if (error != 0) return error;
  end_ = kPageBytes + records * kRecordBytes;
  const std::lock_guard lock(mutex_);
  stats_.compactions++;
  stats_.records_in_file = records;
  stats_.bytes_written += end_;
  return 0;
}

void Journal::probe(uint64_t ticket) {
  ask(ticket, [this] {
    int error = fault.strike();
    if (error == 0) error = files_->probe();
    return error != 0 ? error : write_waiting();
  });
}

void Journal::prepare() {
  ask(0, [this] { return do_prepare(); });
}

int Journal::do_prepare() {
  int error = 0;
  while (error == 0 && segments_ready_ < files_->segments()) {
    error = fault.strike();
    if (error != 0) break;
    error = files_->prepare_segment(static_cast<uint32_t>(segments_ready_));
    if (error == 0) segments_ready_++;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(eventfd_, &one, sizeof one);
  }
  const std::lock_guard lock(mutex_);
  stats_.prepare_error = error;
  return error;
}

std::vector<JournalDone> Journal::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

JournalStats Journal::stats() const {
  const std::lock_guard lock(mutex_);
  JournalStats stats = stats_;
  stats.segments_ready = segments_ready_;
  return stats;
}

bool Journal::close(int wait_ms) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) return true;
  closing_ = true;
  asked_.notify_all();
  const bool ended =
      ended_.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return !running_; });
  std::thread thread = std::move(thread_);
  lock.unlock();
  ended ? thread.join() : thread.detach();
  return ended;
}

}  // namespace evoke
