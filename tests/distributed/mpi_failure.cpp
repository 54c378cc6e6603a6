// Ranks that fail on purpose, as a program's main handles it: mpirun -np 3 mpi_failure throw | late | size | ...
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/mpi_runtime.h"

namespace {

using namespace megalith;

[[noreturn]] void fail_as_a_flag_would() {
  fail({.code = ExitCode::kUsage, .subject = "--some-flag", .expected = "a value", .got = "none", .show_place = false});
}

void run(Communicator& world, std::string_view kind) {
  std::vector<float> values(100'000, 1.0f);
  const Tensor buffer(values.data(), DType::kFp32, {static_cast<std::int64_t>(values.size())});
  Stream stream(DeviceType::kCpu, "comm");
  const AbortOnUnwind guard(world);
  if (kind == "throw" && world.rank() == 1) fail_as_a_flag_would();
  if (kind == "late" && world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  if (kind == "size") {
    // Rank 1 expects less than rank 0 sends.
    world.broadcast(stream, world.rank() == 1 ? buffer.slice(0, 0, 50'000) : buffer, 0);
  } else {
    world.all_reduce(stream, buffer);
  }
  if (kind == "throw_while_streams_wait") {
    // Rank 1 fails while its own stream waits for peers that first wait for it on the host.
    if (world.rank() == 1) {
      world.all_reduce(stream, buffer);
      fail_as_a_flag_would();
    }
    world.host_barrier();
    world.all_reduce(stream, buffer);
  }
  stream.synchronize();
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv, {.timeout = std::chrono::milliseconds(1500)});
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const std::unique_ptr<Communicator> world = mpi.world();
  try {
    run(*world, kind);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
