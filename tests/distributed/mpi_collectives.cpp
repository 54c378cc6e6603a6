// The collective cases on MPI ranks. Only rank 0 reports passed tests; any rank reports failures, and then fails.
//   mpirun -np 4 mpi_collectives [--max-message-bytes=N, and chunks of 64 N] [--device=cuda] [GoogleTest's flags]
// Exit code 77, for a skipped test, if ranks outnumber GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/mesh/mesh.h"
#include "tests/distributed/collective_cases.h"
#include "tests/distributed/exchange_rows_cases.h"
#include "tests/distributed/rank_device.h"
#include "tests/distributed/run_tests.h"

namespace {

using megalith::Communicator;
using namespace megalith::test;

class Collectives : public testing::TestWithParam<bool> {
 public:
  static Communicator* world;  // set by main
  static megalith::DeviceType device;

 protected:
  void check(void (*body)(Communicator&, const CollectiveForm&)) { body(*world, form()); }
  CollectiveForm form() const { return {.device = device, .captured = GetParam()}; }
};
Communicator* Collectives::world = nullptr;
megalith::DeviceType Collectives::device = megalith::DeviceType::kCpu;

TEST_P(Collectives, AllReduce) { check(check_all_reduce); }
TEST_P(Collectives, ReduceScatter) { check(check_reduce_scatter); }
TEST_P(Collectives, AllGather) { check(check_all_gather); }
TEST_P(Collectives, AllToAll) { check(check_all_to_all); }
TEST_P(Collectives, AllToAllV) { check(check_all_to_all_v); }
TEST_P(Collectives, ExchangeRows) { check(check_exchange_rows); }
TEST_P(Collectives, ExchangeOfSharedMemory) { check(check_exchange_of_shared_memory); }
TEST_P(Collectives, RefusedExchanges) { check(check_refused_exchanges); }
TEST_P(Collectives, Shift) { check(check_shift); }
TEST_P(Collectives, ShiftOfSharedMemory) { check(check_shift_of_shared_memory); }
TEST_P(Collectives, SumOfSharedMemory) { check(check_sum_of_shared_memory); }
TEST_P(Collectives, GatherOfSharedMemory) { check(check_gather_of_shared_memory); }
TEST_P(Collectives, MessagesToSharedMemory) { check(check_messages_to_shared_memory); }
TEST_P(Collectives, Broadcast) { check(check_broadcast); }
TEST_P(Collectives, SendReceive) { check(check_send_receive); }
TEST_P(Collectives, HostCalls) { check(check_host_calls); }
TEST_P(Collectives, Split) { check(check_split); }
TEST_P(Collectives, ConcurrentGroups) { check(check_concurrent_groups); }
TEST_P(Collectives, RefusedCalls) { check(check_refused_calls); }
TEST_P(Collectives, Stats) { check(check_stats); }

// Groups of a mesh: tp neighbors, dp across them; each sums over its own members only.
TEST_P(Collectives, MeshGroups) {
  const int tp = world->size() % 2 == 0 ? 2 : 1;
  const megalith::MeshSizes sizes =
      megalith::make_mesh_sizes({.world_size = world->size(), .tensor_model_parallel_size = tp});
  const megalith::Mesh mesh = megalith::Mesh::create(*world, sizes);
  Rig rig(form());
  const megalith::AbortOnUnwind guard(*world);
  const std::unique_ptr<Communicator> edp = mesh.make_group({megalith::Axis::kEdp}, "edp");
  for (const auto& [axis, group] : {std::pair{megalith::Axis::kTp, &mesh.tp()},
                                    {megalith::Axis::kDp, &mesh.dp_cp()},
                                    {megalith::Axis::kEdp, edp.get()}}) {
    auto sum = rig.empty<std::int32_t>(1);
    sum.values[0] = world->rank();
    std::int32_t want = 0;
    for (int member : megalith::group_of(sizes, world->rank(), {axis})) want += member;
    rig.run([&] { launch(rig.stream(), megalith::AllReduce{.group = *group, .buffer = sum.tensor()}); }, sum);
    EXPECT_EQ(sum.values[0], want) << name_of(axis);
  }
}

INSTANTIATE_TEST_SUITE_P(Eager, Collectives, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Captured, Collectives, testing::Values(true));

// Replays of two graphs alternate with eager calls of one group, and the host waits for none of them.
TEST(CallsDuringReplays, OfOneGroup) {
  Communicator& world = *Collectives::world;
  const CollectiveForm form{.device = Collectives::device};
  const std::unique_ptr<Communicator> group = world.duplicate("graphed");
  Rig rig(form);
  megalith::Stream& stream = rig.stream();
  const megalith::AbortOnUnwind guard(world);
  constexpr int kRounds = 6;
  constexpr int kCalls = 1 + 3 * kRounds;  // each but the first multiplies by the ranks: exact in fp64 for up to 7
  auto buffer = rig.empty<double>(100'000);
  for (std::size_t i = 0; i < buffer.values.size(); ++i)
    buffer.values[i] = i % static_cast<std::size_t>(world.size()) == static_cast<std::size_t>(world.rank()) ? 1 : 0;
  const auto sum = [&] { launch(stream, megalith::AllReduce{.group = *group, .buffer = buffer.tensor()}); };
  megalith::Graph first("first"), second("second");
  buffer.upload(stream);
  const bool separate = group->rehearse_captures(true);
  sum();
  group->rehearse_captures(false);
  for (megalith::Graph* graph : {&first, &second}) {
    graph->begin_capture(stream);
    sum();
    graph->end_capture();
  }
  for (int round = 0; round < kRounds; ++round) {
    first.replay(stream);
    sum();
    second.replay(stream);
  }
  buffer.download(stream);
  stream.synchronize();
  EXPECT_THAT(buffer.values, testing::Each(std::pow(world.size(), kCalls - 1)));
  const bool off = std::getenv("NCCL_GRAPH_MIXING_SUPPORT") != nullptr;  // set by one of the tests
  EXPECT_EQ(separate, off && form.device == megalith::DeviceType::kCuda && world.size() > 1);
  EXPECT_EQ(group->stats().graph_calls, separate ? 1 + 2 * kRounds : 0);
}

}  // namespace

int main(int argc, char** argv) {
  megalith::MpiOptions options{.timeout = std::chrono::seconds(60)};
  constexpr std::string_view kPieces = "--max-message-bytes=";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--device=cuda") Collectives::device = megalith::DeviceType::kCuda;
    if (std::string_view(argv[i]).starts_with(kPieces)) {
      options.max_message_bytes = std::strtoull(argv[i] + kPieces.size(), nullptr, 10);
      options.chunk_bytes = 64 * options.max_message_bytes;
    }
  }
  megalith::MpiRuntime mpi(argc, argv, options);
  init_tests(argc, argv, mpi);
  if (!select_rank_device(mpi, Collectives::device)) return kSkipped;
  const std::unique_ptr<Communicator> world = world_on(mpi, Collectives::device);
  Collectives::world = world.get();
  return run_tests(mpi, *world);
}
