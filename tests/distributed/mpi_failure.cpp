// Ranks that fail on purpose, handled like in a program's main: mpirun -np 3 mpi_failure throw | late | size | ...
// [--device=cuda]: exit code 77, for a skipped test, if ranks outnumber GPUs.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
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

// The calls in which ranks fail, and their tensors.
class Calls {
 public:
  Calls(Communicator& world, DeviceType device)
      : world_(world),
        values_(test::Buffer<float>::of_rank({.device = device}, world.rank(), 100'000)),
        sends_({.device = device}, 6),
        rig_({.device = device}),
        graph_("a call") {}

  // Runs valid calls that connect everything, and prepares the data of `call`.
  void prepare(std::string_view kind) {
    if (kind == "late_later" || kind == "late_replay") {
      world_.rehearse_captures(kind == "late_replay");
      all_reduce();
      world_.rehearse_captures(false);
    }
    if (kind == "late_replay") {
      synchronize();
      graph_.begin_capture(stream());
      all_reduce();
      graph_.end_capture();
      graph_.replay(stream());
    }
    if (kind == "late_rows") {
      std::ranges::copy(std::array{0, 1, 2, 0, 1, 2}, sends_.values.begin());
      sends_.upload(stream());
    }
    if (kind == "late_rows" || kind == "late_shift" || kind == "late_message") {
      MemorySharing* const sharing = world_.memory_sharing();
      const std::optional<std::uint64_t> layout = kind == "late_message" ? std::nullopt : std::optional(0);
      shared_ = sharing != nullptr && sharing->share_memory(buffer().data, buffer().bytes(), layout);
      if (!shared_) std::fprintf(stderr, "no memory is shared\n");
      call(kind);
    }
    synchronize();
  }

  void call(std::string_view kind) {
    if (kind == "late_replay") {
      graph_.replay(stream());
    } else if (kind == "late_rows") {
      exchange();
    } else if (kind == "late_shift") {
      launch(stream(), Shift{.group = world_, .in = lower(), .out = upper(), .step = 1});
    } else if (kind == "late_message") {
      message();
    } else if (kind == "size") {
      // Rank 1 expects less than rank 0 sends.
      launch(stream(), Broadcast{.group = world_, .buffer = world_.rank() == 1 ? lower() : buffer(), .root = 0});
    } else {
      all_reduce();
    }
  }

  void all_reduce() { launch(stream(), AllReduce{.group = world_, .buffer = buffer()}); }
  void synchronize() { stream().synchronize(); }

 private:
  // For two ranks: each has a row for either.
  void exchange() {
    launch(stream(), ExchangeRows{.group = world_,
                                  .rows = {{.in = lower().view({2, 25'000}), .out = upper().view({2, 25'000})}},
                                  .sends = sends_.tensor().view({2, 3}),
                                  .pair_room = 1});
  }

  // For two ranks.
  void message() {
    const std::size_t place = lower().bytes();
    if (world_.rank() == 0) {
      launch(
          stream(),
          Send{.group = world_, .buffer = lower(), .peer = 1, .place = shared_ ? std::optional(place) : std::nullopt});
    } else {
      launch(stream(), Receive{.group = world_, .buffer = upper(), .peer = 0, .placed = shared_});
    }
  }

  Stream& stream() { return rig_.stream(); }
  Tensor buffer() { return values_.tensor(); }
  Tensor lower() { return buffer().slice(0, 0, 50'000); }
  Tensor upper() { return buffer().slice(0, 50'000, 50'000); }

  Communicator& world_;
  test::Buffer<float> values_;  // outlives the stream's work
  test::Buffer<std::int32_t> sends_;
  test::Rig rig_;
  Graph graph_;
  bool shared_ = false;
};

void run(Communicator& world, DeviceType device, std::string_view kind) {
  Calls calls(world, device);
  const AbortOnUnwind guard(world);
  if (kind == "throw" && world.rank() == 1) fail_as_a_flag_would();
  calls.prepare(kind);
  if (kind.starts_with("late") && world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  if (kind == "exit" && world.rank() == 1) std::_Exit(3);
  calls.call(kind);
  if (kind == "throw_while_streams_wait") {
    // Rank 1 fails while its own stream waits for peers that first wait for it on the host.
    if (world.rank() == 1) {
      calls.all_reduce();
      fail_as_a_flag_would();
    }
    world.host_barrier();
    calls.all_reduce();
  }
  calls.synchronize();
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
