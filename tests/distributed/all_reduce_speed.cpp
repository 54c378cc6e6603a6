// Bandwidth of an all-reduce in fp32: mpirun -np N all_reduce_speed [MEBIBYTES]; then N ranks as threads on rank 0.
// Bytes of the buffer per second: median of 50 after 5.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "parallel/comm/mpi/mpi_runtime.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace {

using namespace megalith;

void measure(Communicator& world, const char* form, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements), 0.0f);
  const Tensor buffer(values.data(), DType::kFp32, {elements});
  Stream stream(DeviceType::kCpu, "comm");
  std::vector<double> seconds;
  for (int i = 0; i < 55; ++i) {
    world.host_barrier();
    const auto start = std::chrono::steady_clock::now();
    launch(stream, AllReduce{.group = world, .buffer = buffer});
    stream.synchronize();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  seconds.erase(seconds.begin(), seconds.begin() + 5);
  std::nth_element(seconds.begin(), seconds.begin() + 25, seconds.end());
  if (world.rank() == 0) {
    std::printf("%s, %d ranks, %.2f MiB: %.3f ms, %.2f GB/s\n", form, world.size(),
                static_cast<double>(buffer.bytes()) / (1 << 20), seconds[25] * 1e3,
                static_cast<double>(buffer.bytes()) / seconds[25] * 1e-9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  const double mebibytes = argc > 1 ? std::atof(argv[1]) : 4.0;
  const auto elements = static_cast<std::int64_t>(mebibytes * (1 << 18));
  const std::unique_ptr<Communicator> world = mpi.world();
  measure(*world, "mpi", elements);
  if (mpi.rank() == 0) {
    ThreadWorld threads(mpi.size());
    threads.run([&](Communicator& group) { measure(group, "threads", elements); });
  }
  world->host_barrier();
  return 0;
}
