// Ranks that hang or disagree on purpose, with a watcher: mpirun -np 3 mpi_hang stop | loop | skip | host | order |
// count | dtype | rows | rows_order | message | writer | split | end | replay FOLDER [--device=cuda]. Exit code 7, with
// one line that says who waits for whom; 77, for a skipped test, if ranks outnumber GPUs.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/error.h"
#include "core/device/graph.h"
#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/sequence_check.h"
#include "tests/distributed/collective_rig.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;

// A row goes to each rank; GPUs read each other's memory if they can.
class Rows {
 public:
  Rows(test::Rig& rig, Communicator& group)
      : in_(rig.of_rank<float>(group.rank(), group.size() * 4)),
        out_(rig.empty<float>(group.size() * 4)),
        sends_(rig.empty<std::int32_t>(group.size() * (group.size() + 1))),
        op_{.group = group} {
    const std::int64_t ranks = group.size();
    for (std::int64_t i = 0; i < ranks * (ranks + 1); ++i) {
      sends_.values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % (ranks + 1));
    }
    sends_.upload(rig.stream());
    op_.rows = {{.in = in_.tensor().view({ranks, 4}), .out = out_.tensor().view({ranks, 4})}};
    op_.sends = sends_.tensor().view({ranks, ranks + 1});
    op_.pair_room = 1;
    op_.expected_rows = ranks - 1;
    op_.label = "the rows";
    MemorySharing* const sharing = group.memory_sharing();
    if (sharing != nullptr && !sharing->share_memory(in_.tensor().data, in_.tensor().bytes(), 1))
      std::fprintf(stderr, "no memory is shared\n");
  }
  const ExchangeRows& op() const { return op_; }

 private:
  test::Buffer<float> in_, out_;
  test::Buffer<std::int32_t> sends_;
  ExchangeRows op_;
};

constexpr int kReplays = 3'000;

void loop_for_ever() {
  std::atomic<std::uint64_t> rounds{0};
  for (;;) ++rounds;
}

// Hangs like an op of a layer. On the CPU the stream's worker hangs and the host waits; on a GPU the host hangs.
void hang(Stream& stream) {
  if (CpuStream* cpu = stream.cpu()) {
    cpu->enqueue(loop_for_ever);
  } else {
    loop_for_ever();
  }
}

void capture_and_replay(Graph& graph, Stream& stream, Communicator& world, const Tensor& buffer) {
  graph.begin_capture(stream);
  for (const char* label : {"the scores", "the choice"})
    launch(stream, AllReduce{.group = world, .buffer = buffer, .label = label});
  graph.end_capture();
  for (int i = 0; i < kReplays; ++i) graph.replay(stream);
  stream.synchronize();
}

// Rank 1's thread of --async-save never reaches the commit, while the steps continue until the watcher ends the run.
void step_while_writers_wait(Communicator& world, Communicator& saves, Stream& stream, const Tensor& buffer) {
  std::thread writer;
  if (world.rank() != 1) writer = std::thread([&] { saves.host_barrier(); });
  for (;;) {
    launch(stream, AllReduce{.group = world, .buffer = buffer});
    stream.synchronize();
  }
}

void run(MpiRuntime& mpi, Communicator& world, std::string_view kind, const std::string& folder, DeviceType device) {
  test::Rig rig({.device = device});
  Stream& stream = rig.stream();
  auto values = rig.of_rank<float>(world.rank(), 1000);
  auto pairs = rig.empty<bf16>(2000);
  const Tensor buffer = values.tensor();
  const bool odd_one = world.rank() == 1;
  const std::unique_ptr<Communicator> other = world.duplicate("other");
  std::optional<Rows> exchanged;
  if (kind.starts_with("rows")) exchanged.emplace(rig, world);
  MemorySharing* const sharing = kind == "message" ? world.memory_sharing() : nullptr;
  const bool shared = sharing != nullptr && sharing->share_memory(buffer.data, buffer.bytes(), std::nullopt);
  const std::unique_ptr<Communicator> saves = kind == "writer" ? world.duplicate("checkpoint") : nullptr;
  const AbortOnUnwind guard(world);
  launch(stream, AllReduce{.group = *other, .buffer = buffer});  // NCCL takes seconds to start
  for (int i = 0; i < 70; ++i) {
    world.rehearse_captures(kind == "replay" && i == 0);
    launch(stream, AllReduce{.group = world, .buffer = buffer});
  }
  stream.synchronize();
  Graph graph("layer 3 forward");
  if (kind == "replay") capture_and_replay(graph, stream, world, buffer);
  mpi.watch({.timeout = std::chrono::seconds(3), .dump_folder = folder});
  if (odd_one && kind == "stop") std::raise(SIGSTOP);
  if (odd_one && (kind == "loop" || kind == "replay" || kind == "rows" || kind == "message")) hang(stream);
  if (saves) step_while_writers_wait(world, *saves, stream, buffer);
  if (odd_one && kind == "order") launch(stream, AllReduce{.group = *other, .buffer = buffer});
  if (kind == "host" && !odd_one) world.host_barrier();
  if (kind == "host" && odd_one) std::this_thread::sleep_for(std::chrono::seconds(60));
  if (kind == "split" && !odd_one) static_cast<void>(world.duplicate("third"));
  if (kind == "split" && odd_one) {  // it gets no further than the preceding barrier
    world.host_barrier();
    std::raise(SIGSTOP);
  }
  const auto reduce = [&](const Tensor& tensor) {
    launch(stream, AllReduce{.group = world, .buffer = tensor, .label = "the values"});
  };
  if (kind == "replay") {
    graph.replay(stream);
  } else if (kind == "rows" || (kind == "rows_order" && !odd_one)) {
    launch(stream, exchanged->op());
  } else if (kind == "message" && !odd_one) {
    launch(stream, Receive{.group = world, .buffer = buffer, .peer = 1, .label = "the message", .placed = shared});
  } else if (kind == "count") {
    reduce(odd_one ? buffer.slice(0, 0, 500) : buffer);
  } else if (kind == "dtype") {
    reduce(odd_one ? pairs.tensor() : buffer);  // an equal number of bytes
  } else if (!(odd_one && kind == "skip")) {
    reduce(buffer);
  }
  if (kind == "order" && !odd_one) launch(stream, AllReduce{.group = *other, .buffer = buffer});
  stream.synchronize();
  if (kind == "skip") world.host_barrier();
  const std::string difference = difference_of_sequences(world);
  if (!difference.empty()) throw Error(ExitCode::kCommunication, difference);
  if (odd_one && kind == "end") std::raise(SIGSTOP);
  std::fprintf(stderr, "rank %d: nothing failed\n", world.rank());
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  try {
    const DeviceType device =
        argc > 3 && std::string_view(argv[3]) == "--device=cuda" ? DeviceType::kCuda : DeviceType::kCpu;
    if (!test::select_rank_device(mpi, device)) return test::kSkipped;
    const std::unique_ptr<Communicator> world = test::world_on(mpi, device);
    run(mpi, *world, argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "", device);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
