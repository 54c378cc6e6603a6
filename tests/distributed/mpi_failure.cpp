// Ranks that fail on purpose, as a program's main handles it: mpirun -np 3 mpi_failure throw | late | size | ...
//   [--device=cuda]: exit code 77, for a skipped test, where ranks outnumber GPUs.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/memory_sharing.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "tests/distributed/collective_rig.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;

[[noreturn]] void fail_as_a_flag_would() { refuse_usage("--some-flag", {.expected = "a value", .got = "none"}); }

void run(Communicator& world, DeviceType device, std::string_view kind) {
  auto values = test::Buffer<float>::of_rank({.device = device}, world.rank(), 100'000);  // outlives the stream's work
  test::Buffer<std::int32_t> sends({.device = device}, 6);
  test::Rig rig({.device = device});
  Stream& stream = rig.stream();
  const Tensor buffer = values.tensor();
  Graph graph("a call");
  const AbortOnUnwind guard(world);
  const bool late = kind.starts_with("late") && world.rank() == 1;
  if (kind == "throw" && world.rank() == 1) fail_as_a_flag_would();
  if (kind == "late_later" || kind == "late_replay") {  // everything is connected by then
    world.rehearse_captures(kind == "late_replay");
    launch(stream, AllReduce{.group = world, .buffer = buffer});
    world.rehearse_captures(false);
    stream.synchronize();
  }
  if (kind == "late_replay") {
    graph.begin_capture(stream);
    launch(stream, AllReduce{.group = world, .buffer = buffer});
    graph.end_capture();
    graph.replay(stream);
    stream.synchronize();
  }
  const Tensor lower = buffer.slice(0, 0, 50'000), upper = buffer.slice(0, 50'000, 50'000);
  // Of two ranks: each has a row for either.
  const auto exchange = [&] {
    launch(stream, ExchangeRows{.group = world,
                                .rows = {{.in = lower.view({2, 25'000}), .out = upper.view({2, 25'000})}},
                                .sends = sends.tensor().view({2, 3}),
                                .pair_room = 1});
  };
  if (kind == "late_rows") {
    std::ranges::copy(std::array{0, 1, 2, 0, 1, 2}, sends.values.begin());
    sends.upload(stream);
    MemorySharing* const sharing = world.memory_sharing();
    if (sharing == nullptr || !sharing->share_memory(buffer.data, buffer.bytes(), 0))
      std::fprintf(stderr, "no memory is shared\n");
    exchange();
    stream.synchronize();
  }
  if (kind == "late_shift") {
    MemorySharing* const sharing = world.memory_sharing();
    if (sharing == nullptr || !sharing->share_memory(buffer.data, buffer.bytes(), 0))
      std::fprintf(stderr, "no memory is shared\n");
    launch(stream, Shift{.group = world, .in = lower, .out = upper, .step = 1});
    stream.synchronize();
  }
  if (late) std::this_thread::sleep_for(std::chrono::seconds(30));
  if (kind == "exit" && world.rank() == 1) std::_Exit(3);
  if (kind == "late_replay") {
    graph.replay(stream);
  } else if (kind == "late_rows") {
    exchange();
  } else if (kind == "late_shift") {
    launch(stream, Shift{.group = world, .in = lower, .out = upper, .step = 1});
  } else if (kind == "size") {
    // Rank 1 expects less than rank 0 sends.
    launch(stream,
           Broadcast{.group = world, .buffer = world.rank() == 1 ? buffer.slice(0, 0, 50'000) : buffer, .root = 0});
  } else {
    launch(stream, AllReduce{.group = world, .buffer = buffer});
  }
  if (kind == "throw_while_streams_wait") {
    // Rank 1 fails while its own stream waits for peers that first wait for it on the host.
    if (world.rank() == 1) {
      launch(stream, AllReduce{.group = world, .buffer = buffer});
      fail_as_a_flag_would();
    }
    world.host_barrier();
    launch(stream, AllReduce{.group = world, .buffer = buffer});
  }
  stream.synchronize();
  std::fprintf(stderr, "rank %d: nothing failed\n", world.rank());
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv, {.timeout = std::chrono::milliseconds(1500)});
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const bool cuda = argc > 2 && std::string_view(argv[2]) == "--device=cuda";
  const DeviceType device = cuda ? DeviceType::kCuda : DeviceType::kCpu;
  try {
    if (!test::select_rank_device(mpi, device)) return test::kSkipped;
    if (cuda) mpi.set_timeout(std::chrono::seconds(20));  // NCCL takes seconds to start
    const std::unique_ptr<Communicator> world = test::world_on(mpi, device);
    world->host_barrier();
    mpi.set_timeout(std::chrono::milliseconds(1500));
    run(*world, device, kind);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
