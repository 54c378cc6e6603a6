// All-reduce among GPUs: mpirun -np N cuda_all_reduce_speed
// Prints bus bandwidth, bytes * 2 (N-1)/N per second, of fp32 buffers from 1 MiB to 1 GiB. A 256 MiB buffer follows,
// concurrently with matrix products on another stream. Figures are means over many calls, of the slowest rank.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "core/ops/gemm/gemm.h"
#include "core/ops/op.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/comm/nccl/nccl_communicator.h"
#include "tests/distributed/collective_rig.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;

// Seconds of one call on the slowest rank. `work` enqueues, `end` waits.
template <class Work, class End>
double seconds(Communicator& world, int calls, Work work, End end) {
  work();
  end();
  world.host_barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) work();
  end();
  const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  double slowest = 0;
  for (const double seconds : world.host_gather(mine)) slowest = std::max(slowest, seconds);
  return slowest;
}

void measure(Communicator& world) {
  test::Rig rig({.device = DeviceType::kCuda});
  Stream& stream = rig.stream();
  Stream compute(DeviceType::kCuda, "compute");
  auto large = rig.empty<float>(std::int64_t{1} << 28);
  Tensor buffer = large.tensor();
  constexpr std::int64_t kSide = 8192;
  auto matrices = rig.empty<bf16>(3 * kSide * kSide);
  const Tensor all = matrices.tensor().view({3, kSide, kSide});
  const AbortOnUnwind guard(world);
  const bool prints = world.rank() == 0;
  stream.cuda()->fill(buffer.data, 0, buffer.bytes());  // zeros: sums stay finite
  stream.cuda()->fill(all.data, 0, all.bytes());
  stream.synchronize();
  for (std::int64_t mebibytes = 1; mebibytes <= 1024; mebibytes *= 4) {
    const Tensor part = buffer.slice(0, 0, mebibytes << 18);
    const int calls = static_cast<int>(std::clamp<std::int64_t>(4096 / mebibytes, 8, 200));
    const double time = seconds(
        world, calls, [&] { launch(stream, AllReduce{.group = world, .buffer = part}); },
        [&] { stream.synchronize(); });
    const double bus = static_cast<double>(part.bytes()) * 2 * (world.size() - 1) / world.size() / time;
    if (prints)
      std::printf("all_reduce %5lld MiB: %9.1f us, bus %6.1f GB/s\n", static_cast<long long>(mebibytes), time * 1e6,
                  bus * 1e-9);
  }
  const Gemm product{.a = all.slice(0, 0, 1).view({kSide, kSide}),
                     .b = all.slice(0, 1, 1).view({kSide, kSide}),
                     .c = all.slice(0, 2, 1).view({kSide, kSide}),
                     .transpose_b = true};
  const Tensor part = buffer.slice(0, 0, std::int64_t{1} << 26);
  const auto multiply = [&] { launch(compute, product); };
  const auto reduce = [&] { launch(stream, AllReduce{.group = world, .buffer = part}); };
  const auto end = [&] {
    compute.synchronize();
    stream.synchronize();
  };
  const double products = seconds(world, 100, multiply, end);
  const double reductions = seconds(world, 100, reduce, end);
  const double both = seconds(
      world, 100,
      [&] {
        reduce();
        multiply();
      },
      end);
  if (prints) {
    std::printf(
        "8192^3 bf16 product %.0f us, 256 MiB all_reduce %.0f us, both at once %.0f us: %.0f %% of the shorter "
        "hidden\n",
        products * 1e6, reductions * 1e6, both * 1e6,
        100 * (products + reductions - both) / std::min(products, reductions));
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  if (!test::select_rank_device(mpi, DeviceType::kCuda)) return test::kSkipped;
  try {
    const std::unique_ptr<Communicator> world = gpu_world(mpi);
    measure(*world);
    world->host_barrier();
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
