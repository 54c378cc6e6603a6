#include "parallel/comm/mpi_watcher.h"

#include <errno.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>

#include "core/base/log.h"
#include "parallel/comm/mpi_process.h"

namespace megalith {

namespace {

using Clock = CollectiveCall::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kPeriod(50);
constexpr milliseconds kAnswers(1000);     // time that ranks have to answer
constexpr milliseconds kAlmost(500);       // ranks come to a call at different times
constexpr milliseconds kLeaderTime(3000);  // for the rank that should report, before another does
enum WatchTag : int { kQuery = 1, kReply };

double ms_since(Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(Clock::now() - time).count();
}

}  // namespace

// Small messages among the watchers. Those sent stay in memory: a rank that is stopped never takes its own.
struct MpiWatcher::Messages {
  MPI_Comm comm = MPI_COMM_NULL;
  std::deque<std::string> sent;

  void send(int rank, int tag, std::string text) {
    sent.push_back(std::move(text));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(sent.back().data(), static_cast<int>(sent.back().size()), MPI_BYTE, rank, tag, comm, &request);
    MPI_Request_free(&request);
  }

  struct Message {
    int rank = 0;
    int tag = 0;
    std::string text;
  };
  std::optional<Message> take() {
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &there, &status) != MPI_SUCCESS || there == 0) return {};
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    Message message{
        .rank = status.MPI_SOURCE, .tag = status.MPI_TAG, .text = std::string(static_cast<std::size_t>(count), ' ')};
    MPI_Recv(message.text.data(), count, MPI_BYTE, message.rank, message.tag, comm, MPI_STATUS_IGNORE);
    return message;
  }
};

MpiWatcher::MpiWatcher(std::shared_ptr<MpiProcess> process, const WatchOptions& options)
    : process_(std::move(process)), options_(options), messages_(std::make_unique<Messages>()) {
  if (MPI_Comm_dup(MPI_COMM_WORLD, &messages_->comm) != MPI_SUCCESS)
    fail({.code = ExitCode::kCommunication, .subject = "MPI_Comm_dup for the watcher"});
  MPI_Comm_set_errhandler(messages_->comm, MPI_ERRORS_RETURN);
  thread_ = std::thread([this] { watch(); });
}

MpiWatcher::~MpiWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  MPI_Comm_free(&messages_->comm);
}

bool MpiWatcher::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stop_; });
}

void MpiWatcher::watch() {
  std::map<int, RankState> unasked;
  while (pause(kPeriod)) {
    answer(unasked);
    HangReport late;
    if (process_->aborted || !finds_late(late)) continue;
    report(late);
    return;
  }
}

bool MpiWatcher::finds_late(HangReport& report) {
  for (const auto& recorder : process_->live_recorders()) {
    const std::optional<CollectiveCall> call = recorder->current();
    if (!call || Clock::now() - call->began < options_.timeout) continue;
    report = {.me = process_->rank,
              .group = recorder->group(),
              .members = recorder->world_ranks(),
              .late = *call,
              .timeout = options_.timeout,
              .states = {}};
    return true;
  }
  return false;
}

RankState MpiWatcher::state() {
  RankState state;
  for (const auto& recorder : process_->live_recorders()) {
    const std::optional<CollectiveCall> call = recorder->current();
    RankState::Group group{.name = recorder->group(), .sequence = recorder->sequence()};
    if (call) {
      group.running_sequence = call->sequence;
      group.running = to_string(*call);
      group.running_ms = ms_since(call->began);
      state.late = state.late || Clock::now() - call->began + kAlmost > options_.timeout;
    }
    state.groups.push_back(std::move(group));
  }
  return state;
}

void MpiWatcher::answer(std::map<int, RankState>& replies) {
  while (auto message = messages_->take()) {
    if (message->tag == kReply) {
      replies[message->rank] = rank_state_from(message->text);
      continue;
    }
    messages_->send(message->rank, kReply, to_text(state()));
    dump(message->text);
  }
}

void MpiWatcher::report(HangReport& report) {
  for (int rank = 0; rank < process_->size; ++rank) {
    if (rank != process_->rank)
      messages_->send(
          rank, kQuery,
          fmt::format("rank {} waits in {} on group {}", process_->rank, to_string(report.late), report.group));
  }
  report.states[process_->rank] = state();
  const auto asked = Clock::now();
  while (static_cast<int>(report.states.size()) < process_->size && Clock::now() - asked < kAnswers) {
    answer(report.states);
    if (!pause(milliseconds(5))) return;
  }
  const std::string text = to_string(report);
  dump(text);
  const bool leads = std::none_of(report.states.begin(), report.states.end(),
                                  [&](const auto& s) { return s.first < process_->rank && s.second.late; });
  for (const auto decided = Clock::now(); !leads && Clock::now() - decided < kLeaderTime;) {
    answer(report.states);
    if (!pause(milliseconds(20))) return;
  }
  fmt::print(
      stderr, "{}: error: [rank {}/{}] {}{}\n", program_invocation_short_name, process_->rank, process_->size, text,
      options_.dump_folder.empty() ? "" : fmt::format("; the last calls of each rank: {}", options_.dump_folder));
  end_all_ranks(*process_, ExitCode::kCommunication);
}

void MpiWatcher::dump(const std::string& reason) {
  if (dumped_ || options_.dump_folder.empty()) return;
  dumped_ = true;
  const auto live = process_->live_recorders();
  std::vector<const FlightRecorder*> recorders;
  for (const auto& recorder : live) recorders.push_back(recorder.get());
  const std::string path = fmt::format("{}/comm_rank_{:04}.json", options_.dump_folder, process_->rank);
  std::error_code error;
  std::filesystem::create_directories(options_.dump_folder, error);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  const std::string content = dump_json(process_->rank, process_->size, reason, recorders);
  const bool written = file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed) log_warning("the last calls could not be written to " + path);
}

}  // namespace megalith
