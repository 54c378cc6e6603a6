#include "parallel/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/device/cuda_stream_state.h"

namespace megalith {

namespace {

// Clears the flag of a group in use by a worker, also if the call throws.
class Use {
 public:
  Use(std::atomic<bool>& flag, const std::string& group) : flag_(flag) {
    if (flag_.exchange(true)) {
      fail({.subject = "group " + group,
            .expected = "one stream at a time",
            .got = "two",
            .remedy = "order the streams by an event, or give one of them a duplicate() of the group"});
    }
  }
  ~Use() { flag_.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<bool>& flag_;
};

// Payload that the host knows. An ExchangeRows on a worker counts its own.
std::int64_t bytes_of(const Collective& collective, const Access& access, Stream& stream) {
  if (const ExchangeRows* const rows = exchange_rows_in(collective)) {
    return stream.cpu() != nullptr ? 0 : rows->expected_rows * row_bytes(*rows);
  }
  std::int64_t bytes = 0;
  for (const AccessRange& range : access.ranges()) bytes += range.write ? 0 : static_cast<std::int64_t>(range.bytes);
  return bytes;
}

}  // namespace

CommunicatorStats Communicator::stats() const {
  CommunicatorStats stats = stats_;
  stats.messages += messages_.load();
  stats.bytes += sent_.load();
  return stats;
}

void Communicator::count_sent(std::int64_t bytes) {
  if (size_ == 1) return;
  ++messages_;
  sent_ += bytes;
}

void Communicator::count_path(Stream& stream, std::int64_t CommunicatorStats::*path) {
  stream.on_each_run([this, path](Stream&) { ++(stats_.*path); });
}

void Communicator::enqueue(Stream& stream, Collective given) {
  Collective collective = checked(std::move(given));
  if (is_idle(collective)) return;
  const Access access = access_of(collective);
  const std::int64_t bytes = bytes_of(collective, access, stream);
  if (stream.needs_access()) stream.announce(access);
  if (size_ > 1) {
    if (CudaStream* const cuda = stream.cuda()) cuda->state().capture.meets_ranks = true;
    stream.on_each_run([this, bytes, call = call_of(collective)](Stream& runs_on) {
      ++stats_.collectives;
      stats_.bytes += bytes;
      recorder_->announce(call);
      if (runs_on.device() != DeviceType::kCuda) return;
      recorder_->begin(call);
      recorder_->end();  // enqueued; the GPU reports when it runs
    });
  }
  if (CpuStream* const cpu = stream.cpu()) {
    cpu->enqueue([this, collective = std::move(collective)] {
      const Use use(in_use_, name_);
      if (size_ > 1) recorder_->begin(call_of(collective));
      run(collective);
      if (size_ > 1) recorder_->end();
    });
  } else if (CudaStream* const cuda = stream.cuda()) {
    const Use use(in_use_, name_);
    [[maybe_unused]] const CudaStream::Range range(kCollectiveNames[collective.index()]);
    run(stream, *cuda, collective);
  } else {
    on_plan(stream, collective, bytes);
  }
  stream.end_op();
}

void Communicator::on_plan(Stream&, const Collective&, std::int64_t) {}

void Communicator::run(Stream&, CudaStream&, const Collective& collective) {
  fail({.subject = fmt::format("{} on group {}", kCollectiveNames[collective.index()], name_),
        .expected = "a stream on the group's device",
        .got = "a CUDA stream"});
}

std::string Communicator::host_broadcast(const std::string& value, int root) {
  require(root >= 0 && root < size_, "host_broadcast: a root outside the group");
  return host_all_gather(rank_ == root ? value : std::string())[static_cast<std::size_t>(root)];
}

std::unique_ptr<Communicator> Communicator::subgroup(std::span<const int> ranks, const std::string& name) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    fail({.subject = fmt::format("subgroup on group {}: {}", name_, name),
          .expected = fmt::format("a list with rank {}", rank_),
          .got = fmt::format("[{}]", fmt::join(ranks, ", "))});
  }
  return split(ranks.front(), static_cast<int>(mine - ranks.begin()), name);
}

std::unique_ptr<Communicator> Communicator::duplicate(const std::string& name) {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return subgroup(ranks, name);
}

AbortOnUnwind::AbortOnUnwind(Communicator& group) : group_(group), exceptions_(std::uncaught_exceptions()) {}

AbortOnUnwind::~AbortOnUnwind() {
  if (std::uncaught_exceptions() > exceptions_) {
    group_.abort(fmt::format("rank {} of group {} failed", group_.rank(), group_.name()));
  }
}

}  // namespace megalith
