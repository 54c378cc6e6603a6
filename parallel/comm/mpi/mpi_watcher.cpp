#include "parallel/comm/mpi/mpi_watcher.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <exception>
#include <system_error>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/base/log.h"
#include "parallel/comm/mpi/mpi_process.h"

namespace megalith {

namespace {

using Clock = CollectiveCall::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kPeriod(50);
constexpr milliseconds kAnswers(1000);     // time for ranks to answer
constexpr milliseconds kDumps(1500);       // time for ranks to write their calls
constexpr milliseconds kAlmost(500);       // ranks reach a call at different times
constexpr milliseconds kLeaderTime(5000);  // time for the leading rank to report, before another rank does
enum WatchTag : int { kQuery = 1, kReply, kDumped };

double ms_since(Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(Clock::now() - time).count();
}

void write_dump(const std::string& folder, int rank, const std::string& content) {
  const FaultScope scope("comm_dump");
  try {
    make_directories(folder);  // without syncs, which may take seconds while ranks wait
    const Directory directory = Directory::open(folder);
    const std::string name = fmt::format("comm_rank_{:04}.json", rank), temporary = name + ".tmp";
    if (directory.contains(temporary)) directory.remove_file(temporary);
    File file = directory.create_file(temporary);  // replaces a file or link of this name, without writing to it
    file.write(content);
    file.close();
    directory.rename(temporary, name);
  } catch (const std::exception& error) {
    log_warning(fmt::format("the last calls are not kept: {}", error.what()));
  }
}

}  // namespace

// Small messages between watchers. Sent messages stay in memory, since a stopped rank never receives them.
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

void MpiWatcher::dump_all(const std::string& reason) {
  std::unique_lock lock(mutex_);
  request_ = reason;
  changed_.notify_all();
  changed_.wait_for(lock, kPeriod + 2 * kDumps, [this] { return !request_; });
}

bool MpiWatcher::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return stop_; });
}

bool MpiWatcher::pause_until(milliseconds at_most, const std::function<bool()>& done) {
  for (const auto start = Clock::now(); !done() && Clock::now() - start < at_most;) {
    if (!pause(milliseconds(5))) return false;
    serve();
  }
  return true;
}

void MpiWatcher::watch() {
  awake_.look(Clock::now());
  while (pause(kPeriod)) {
    awake_.look(Clock::now());
    serve();
    serve_request();
    HangReport late;
    if (process_->aborted || !finds_late(late)) continue;
    report(late);
    return;
  }
}

void MpiWatcher::serve_request() {
  std::unique_lock lock(mutex_);
  if (!request_) return;
  const std::string reason = *request_;
  lock.unlock();
  ask_all(reason);
  dump(reason);
  pause_until(kDumps, [this] { return static_cast<int>(answers_.dumped.size()) == process_->size; });
  lock.lock();
  request_.reset();
  changed_.notify_all();
}

bool MpiWatcher::is_late(const CollectiveCall& call, milliseconds slack) const {
  return awake_.since(call.began) + slack >= options_.timeout;
}

bool MpiWatcher::finds_late(HangReport& report) {
  for (const auto& recorder : process_->live_recorders()) {
    const std::optional<CollectiveCall> call = recorder->current();
    if (!call || !is_late(*call, milliseconds(0))) continue;
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
      state.late = state.late || is_late(*call, kAlmost);
    }
    state.groups.push_back(std::move(group));
  }
  return state;
}

void MpiWatcher::serve() {
  while (auto message = messages_->take()) {
    if (message->tag == kReply) {
      answers_.states[message->rank] = rank_state_from(message->text);
    } else if (message->tag == kDumped) {
      answers_.dumped.insert(message->rank);
    } else {
      messages_->send(message->rank, kReply, to_text(state()));
      dump(message->text);
      askers_.push_back(message->rank);
    }
  }
  if (!written_ || !*written_) return;
  answers_.dumped.insert(process_->rank);
  for (const int rank : askers_) messages_->send(rank, kDumped, "");
  askers_.clear();
}

void MpiWatcher::ask_all(const std::string& reason) {
  for (int rank = 0; rank < process_->size; ++rank) {
    if (rank != process_->rank) messages_->send(rank, kQuery, reason);
  }
}

void MpiWatcher::report(HangReport& report) {
  auto& states = answers_.states;
  states[process_->rank] = state();
  ask_all(fmt::format("rank {} waits in {} on group {}", process_->rank, to_string(report.late), report.group));
  if (!pause_until(kAnswers, [&] { return static_cast<int>(states.size()) == process_->size; })) return;
  report.states = states;
  report.world = process_->size;
  report.place_of = options_.place_of;
  const std::string text = to_string(report);
  const bool leads = std::none_of(states.begin(), states.end(),
                                  [&](const auto& s) { return s.first < process_->rank && s.second.late; });
  if (!leads) {
    dump(text);
    if (!pause_until(kLeaderTime, [] { return false; })) return;  // the leader ends this process
  }
  const std::string line = fmt::format(
      "{}: error: [rank {}/{}{}] {}; reported {:.1f} s after the call began{}", program_invocation_short_name,
      process_->rank, process_->size, report.place(process_->rank), text, ms_since(report.late.began) * 1e-3,
      options_.dump_folder.empty() ? "" : fmt::format("; the last calls of each rank: {}", options_.dump_folder));
  log_last_words(line);
  dump(text);
  pause_until(kDumps, [&] { return answers_.dumped.size() >= states.size(); });
  end_all_ranks(*process_, ExitCode::kCommunication);
}

// Writes in a separate thread, so that a hanging file system does not delay reports to other ranks.
void MpiWatcher::dump(const std::string& reason) {
  if (written_) return;
  written_ = std::make_shared<std::atomic<bool>>(options_.dump_folder.empty());
  if (*written_) return;
  const auto live = process_->live_recorders();
  std::vector<const FlightRecorder*> recorders;
  recorders.reserve(live.size());
  for (const auto& recorder : live) recorders.push_back(recorder.get());
  const std::string content = dump_json(process_->rank, process_->size, reason, recorders);
  const auto write = [folder = options_.dump_folder, rank = process_->rank, content, written = written_] {
    write_dump(folder, rank, content);
    *written = true;
  };
  try {
    std::thread(write).detach();
  } catch (const std::system_error&) {  // no thread available
    write();
  }
}

}  // namespace megalith
