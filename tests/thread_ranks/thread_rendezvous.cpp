#include "tests/thread_ranks/thread_rendezvous.h"

#include <fmt/format.h>

namespace megalith {

void ThreadWorldState::abort(ExitCode code, const std::string& message) {
  const std::lock_guard lock(mutex);
  abort_locked(code, message);
}

bool ThreadWorldState::is_abort(const Error& error) {
  const std::lock_guard lock(mutex);
  return aborted && error.what() == abort_message;
}

void ThreadWorldState::abort_locked(ExitCode code, const std::string& message) {
  if (aborted) return;
  aborted = true;
  abort_code = code;
  abort_message = message;
  for (std::condition_variable* signal : signals) signal->notify_all();
}

void ThreadWorldState::throw_if_aborted() const {
  if (aborted) throw Error(abort_code, abort_message);
}

ThreadSignal::ThreadSignal(ThreadWorldState& world) : world_(world) {
  const std::lock_guard lock(world_.mutex);
  world_.signals.insert(&changed);
}

ThreadSignal::~ThreadSignal() {
  const std::lock_guard lock(world_.mutex);
  world_.signals.erase(&changed);
}

ThreadRendezvous::ThreadRendezvous(ThreadWorldState& world, std::string group, int size)
    : world_(world), signal_(world), group_(std::move(group)), size_(size), calls_(static_cast<std::size_t>(size)) {}

bool ThreadRendezvous::arrive(std::unique_lock<std::mutex>& lock) {
  if (++arrived_ < size_) return false;
  arrived_ = 0;
  ++generation_;
  lock.unlock();
  signal_.changed.notify_all();
  return true;
}

void ThreadRendezvous::begin(int rank, const ThreadCall& call) {
  std::unique_lock lock(world_.mutex);
  world_.throw_if_aborted();
  calls_[static_cast<std::size_t>(rank)] = call;
  if (arrived_ + 1 == size_) {
    if (const std::optional<std::string> difference = mismatch()) {
      world_.abort_locked(ExitCode::kCommunication, *difference);
      world_.throw_if_aborted();
    }
  }
  const std::uint64_t mine = generation_;
  if (arrive(lock)) return;
  const auto complete = [&] { return generation_ != mine; };
  const bool in_time = signal_.changed.wait_for(lock, world_.timeout, [&] { return complete() || world_.aborted; });
  if (complete()) return;
  if (!in_time) {
    world_.abort_locked(ExitCode::kCommunication,
                        fmt::format("{} on group {}: only {} of {} ranks came within {} ms", call.name, group_,
                                    arrived_, size_, world_.timeout.count()));
  }
  world_.throw_if_aborted();
}

void ThreadRendezvous::meet() {
  std::unique_lock lock(world_.mutex);
  const std::uint64_t mine = generation_;
  if (arrive(lock)) return;
  signal_.changed.wait(lock, [&] { return generation_ != mine; });
}

std::optional<std::string> ThreadRendezvous::mismatch() const {
  const auto text = [](const ThreadCall& c) {
    return c.dtype ? fmt::format("{} {} of {} elements", c.name, name_of(*c.dtype), c.numel) : std::string(c.name);
  };
  const ThreadCall& first = calls_[0];
  for (std::size_t r = 1; r < calls_.size(); ++r) {
    const ThreadCall& other = calls_[r];
    if (std::string_view(first.name) == other.name && first.dtype == other.dtype && first.numel == other.numel &&
        first.argument == other.argument) {
      continue;
    }
    const auto argument = [&](const ThreadCall& c) {
      return first.argument == other.argument ? "" : fmt::format(" (root or reduction {})", c.argument);
    };
    return fmt::format("group {}: expected the same call on all ranks, got {}{} on rank 0 and {}{} on rank {}", group_,
                       text(first), argument(first), text(other), argument(other), r);
  }
  if (first.in_rows == nullptr) return std::nullopt;
  for (std::size_t from = 0; from < calls_.size(); ++from) {
    for (std::size_t to = 0; to < calls_.size(); ++to) {
      const std::int64_t sent = (*calls_[from].in_rows)[to];
      const std::int64_t expected = (*calls_[to].out_rows)[from];
      if (sent == expected) continue;
      return fmt::format("{} on group {}: rank {} expects {} rows from rank {}, which sends {}", first.name, group_, to,
                         expected, from, sent);
    }
  }
  return std::nullopt;
}

ThreadGroup::ThreadGroup(std::shared_ptr<ThreadWorldState> world_state, const std::string& name, int group_size)
    : world(std::move(world_state)),
      size(group_size),
      streams(*world, name, size),
      host(*world, name + " (host)", size),
      channels(static_cast<std::size_t>(size * size)),
      channel_signal(*world),
      children(static_cast<std::size_t>(size)),
      shared(static_cast<std::size_t>(size)) {}

}  // namespace megalith
