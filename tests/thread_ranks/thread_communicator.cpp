#include "tests/thread_ranks/thread_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/exchanged_rows.h"
#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/reduce_parts.h"
#include "tests/thread_ranks/thread_rendezvous.h"

namespace megalith {

namespace {

void copy(const Tensor& from, const Tensor& to) {
  if (from.data != to.data && from.bytes() > 0) std::memcpy(to.data, from.data, from.bytes());
}

// Part of `whole` that belongs to `rank` when it is divided among `size` as evenly as possible.
Tensor slice_of(const Tensor& whole, int rank, int size) {
  const std::int64_t begin = whole.numel() * rank / size;
  return whole.slice(0, begin, whole.numel() * (rank + 1) / size - begin);
}

class ThreadCommunicator final : public Communicator, public MemorySharing {
 public:
  ThreadCommunicator(std::string name, int rank, std::shared_ptr<ThreadGroup> group)
      : Communicator(std::move(name), rank, group->size), group_(std::move(group)) {}

  void host_barrier() override { group_->host.begin(rank(), {.name = "host_barrier"}); }

  std::vector<std::string> host_all_gather(const std::string& mine) override {
    std::vector<std::string> all(static_cast<std::size_t>(size()));
    group_->host.begin(rank(), {.name = "host_all_gather", .text = &mine});
    for (int r = 0; r < size(); ++r) all[static_cast<std::size_t>(r)] = *group_->host.call(r).text;
    group_->host.meet();
    return all;
  }

  bool host_any(bool mine) override {
    group_->host.begin(rank(), {.name = "host_any", .flag = mine});
    bool any = false;
    for (int r = 0; r < size(); ++r) any = any || group_->host.call(r).flag;
    group_->host.meet();
    return any;
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    if (color < 0)
      fail({.subject = "split of group " + this->name(), .expected = "a color >= 0", .got = fmt::format("{}", color)});
    group_->host.begin(rank(), {.name = "split", .color = color, .key = key});
    std::vector<int> members;
    for (int r = 0; r < size(); ++r) {
      if (group_->host.call(r).color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return group_->host.call(a).key < group_->host.call(b).key; });
    const auto first = static_cast<std::size_t>(members.front());
    if (rank() == members.front()) {
      group_->children[first] = std::make_shared<ThreadGroup>(group_->world, name, static_cast<int>(members.size()));
    }
    group_->host.meet();
    std::shared_ptr<ThreadGroup> child = group_->children[first];
    group_->host.meet();
    if (rank() == members.front()) group_->children[first].reset();
    const auto mine = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    return std::make_unique<ThreadCommunicator>(name, mine, std::move(child));
  }

  bool rehearse_captures(bool on) override { return on && size() > 1; }  // so that tests cover the GPUs' case

  MemorySharing* memory_sharing() override { return group_->world->shares_messages ? this : nullptr; }
  bool share_memory(void* base, std::size_t bytes, std::optional<std::uint64_t> layout) override {
    if (layout || size() == 1) return false;
    shared(rank()) = {static_cast<std::byte*>(base), bytes};
    host_barrier();
    return true;
  }
  void unshare_memory() override {
    if (shared(rank()).empty()) return;
    host_barrier();
    shared(rank()) = {};
  }

  void abort(const std::string& message) override { group_->world->abort(ExitCode::kCommunication, message); }

 protected:
  void run(const Collective& collective) override {
    std::visit(
        [this]<class Op>(const Op& op) {
          if constexpr (SharedCollective<Op>) {
            fail({.subject = fmt::format("{} on group {}: in", Op::kName, name()),
                  .expected = "memory that the ranks share",
                  .got = "other memory"});
          } else {
            exchange(op);
          }
        },
        collective);
  }

 private:
  // Each rank sums its slice of all buffers into its own, then copies the other slices from their owners.
  void exchange(const AllReduce& op) {
    const Tensor& buffer = op.buffer;
    begin("all_reduce", buffer, static_cast<int>(op.op));
    reduce_into(op.op, slice_of(buffer, rank(), size()), [&](int r) { return slice_of(peer(r), rank(), size()); });
    group_->streams.meet();
    for (int r = 0; r < size(); ++r) copy(slice_of(peer(r), r, size()), slice_of(buffer, r, size()));
    group_->streams.meet();
  }

  void exchange(const ReduceScatter& op) {
    const Tensor& out = op.out;
    begin("reduce_scatter", op.in);
    reduce_into(ReduceOp::kSum, out, [&](int r) { return peer(r).slice(0, rank() * out.numel(), out.numel()); });
    group_->streams.meet();
  }

  void exchange(const AllGather& op) {
    begin("all_gather", op.in);
    for (int r = 0; r < size(); ++r) copy(peer(r), op.out.slice(0, r * op.in.numel(), op.in.numel()));
    group_->streams.meet();
  }

  void exchange(const AllToAll& op) {
    ThreadCall call{
        .name = "all_to_all", .dtype = op.in.dtype, .buffer = &op.in, .in_rows = &op.in_rows, .out_rows = &op.out_rows};
    call.numel = 1;  // elements per row
    for (int d = 1; d < op.in.rank(); ++d) call.numel *= op.in.size(d);
    group_->streams.begin(rank(), call);
    for (int r = 0; r < size(); ++r) {
      copy(rows_of_rank(peer(r), *group_->streams.call(r).in_rows, rank()), rows_of_rank(op.out, op.out_rows, r));
    }
    group_->streams.meet();
  }

  void exchange(const ExchangeRows& op) {
    const ExchangeRows::Rows& first = op.rows.front();
    group_->streams.begin(rank(), {.name = "exchange_rows",
                                   .argument = static_cast<int>(2 * op.rows.size()) + (op.back ? 1 : 0),
                                   .dtype = first.in.dtype,
                                   .numel = op.pair_room * row_bytes(op),
                                   .rows = &op});
    for (int r = 0; r < size(); ++r) copy_rows(*group_->streams.call(r).rows, r, op);
    count_sent(sent_bytes(op));
    group_->streams.meet();
  }

  void exchange(const Shift& op) { exchange(all_to_all_of(op)); }

  void exchange(const Broadcast& op) {
    begin("broadcast", op.buffer, op.root);
    copy(peer(op.root), op.buffer);
    group_->streams.meet();
  }

  void exchange(const Send& op) {
    ThreadWorldState& world = *group_->world;
    ThreadChannel& channel = group_->channel(rank(), op.peer);
    std::unique_lock lock(world.mutex);
    world.throw_if_aborted();
    channel.buffer = &op.buffer;
    channel.place = op.place;
    channel.state = ThreadChannel::State::kOffered;
    group_->channel_signal.changed.notify_all();
    const bool in_time = group_->channel_signal.changed.wait_for(
        lock, world.timeout, [&] { return channel.state != ThreadChannel::State::kOffered || world.aborted; });
    if (channel.state == ThreadChannel::State::kOffered) {  // withdrawn
      channel.state = ThreadChannel::State::kEmpty;
      if (!in_time) world.abort_locked(ExitCode::kCommunication, late("send", op.peer));
      world.throw_if_aborted();
    }
    group_->channel_signal.changed.wait(lock, [&] { return channel.state == ThreadChannel::State::kEmpty; });
  }

  void exchange(const Receive& op) {
    ThreadWorldState& world = *group_->world;
    ThreadChannel& channel = group_->channel(op.peer, rank());
    std::unique_lock lock(world.mutex);
    const auto offered = [&] { return channel.state == ThreadChannel::State::kOffered; };
    const bool in_time =
        group_->channel_signal.changed.wait_for(lock, world.timeout, [&] { return offered() || world.aborted; });
    if (!in_time) world.abort_locked(ExitCode::kCommunication, late("receive", op.peer));
    world.throw_if_aborted();
    if (channel.buffer->bytes() != op.buffer.bytes()) {
      world.abort_locked(ExitCode::kCommunication,
                         fmt::format("group {}: rank {} expects {} bytes from rank {}, which sends {}", name(), rank(),
                                     op.buffer.bytes(), op.peer, channel.buffer->bytes()));
      world.throw_if_aborted();
    }
    const bool same_place = channel.place.has_value() == op.placed &&
                            (!op.placed || shared(rank()).data() + *channel.place == op.buffer.as<std::byte>());
    if (!same_place) {
      world.abort_locked(ExitCode::kCommunication,
                         fmt::format("group {}: rank {} sends a message to another place than rank {} expects", name(),
                                     op.peer, rank()));
      world.throw_if_aborted();
    }
    channel.state = ThreadChannel::State::kTaken;
    lock.unlock();
    copy(*channel.buffer, op.buffer);
    lock.lock();
    channel.state = ThreadChannel::State::kEmpty;
    group_->channel_signal.changed.notify_all();
  }

  void begin(const char* call, const Tensor& buffer, int argument = -1) {
    group_->streams.begin(
        rank(),
        {.name = call, .argument = argument, .dtype = buffer.dtype, .numel = buffer.numel(), .buffer = &buffer});
  }

  std::span<std::byte>& shared(int r) const { return group_->shared[static_cast<std::size_t>(r)]; }
  const Tensor& peer(int r) const { return *group_->streams.call(r).buffer; }

  template <class PartOf>
  void reduce_into(ReduceOp op, const Tensor& out, PartOf part_of) {
    std::vector<const void*> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(part_of(r).data);
    reduce_parts(op, out.dtype, parts, out.data, out.numel());
  }

  std::string late(const char* call, int other) const {
    return fmt::format("{} on group {}: rank {} did not come within {} ms", call, name(), other,
                       group_->world->timeout.count());
  }

  std::shared_ptr<ThreadGroup> group_;
};

}  // namespace

ThreadWorld::ThreadWorld(int size, std::chrono::milliseconds timeout, bool shares_messages)
    : size_(size), state_(std::make_shared<ThreadWorldState>()) {
  require(size > 0, "ThreadWorld without ranks");
  state_->timeout = timeout;
  state_->shares_messages = shares_messages;
  state_->world = std::make_shared<ThreadGroup>(state_, "world", size);
}

// The group holds the state and the state the group; the ranks' own references keep them alive from here on.
ThreadWorld::~ThreadWorld() { state_->world.reset(); }

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) {
  require(rank >= 0 && rank < size_, "ThreadWorld: rank outside the world");
  return std::make_unique<ThreadCommunicator>("world", rank, state_->world);
}

void ThreadWorld::run(const std::function<void(Communicator& world)>& body) {
  std::mutex mutex;
  std::exception_ptr cause;        // the first error that is not the echo of an abort
  std::exception_ptr consequence;  // the first that is
  const auto keep = [&](std::exception_ptr& place) {
    const std::lock_guard lock(mutex);
    if (!place) place = std::current_exception();
  };
  const auto run_rank = [&](int rank) {
    const std::unique_ptr<Communicator> world = communicator(rank);
    try {
      body(*world);
    } catch (const Error& error) {
      keep(state_->is_abort(error) ? consequence : cause);
      world->abort(fmt::format("rank {}: {}", rank, error.what()));
    } catch (const std::exception& error) {
      keep(cause);
      world->abort(fmt::format("rank {}: {}", rank, error.what()));
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace megalith
