// The collective cases on MPI ranks. Rank 0 alone reports what passes; any rank reports and fails what does not.
//   mpirun -np 4 mpi_collectives [--max-message-bytes=N, and chunks of 64 N] [GoogleTest's flags]
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "parallel/comm/mpi_runtime.h"
#include "parallel/mesh/mesh.h"
#include "tests/distributed/collective_cases.h"

namespace {

using megalith::Communicator;
using namespace megalith::test;

class Collectives : public testing::Test {
 public:
  static Communicator* world;  // of main
};
Communicator* Collectives::world = nullptr;

TEST_F(Collectives, AllReduce) { check_all_reduce(*world); }
TEST_F(Collectives, ReduceScatter) { check_reduce_scatter(*world); }
TEST_F(Collectives, AllGather) { check_all_gather(*world); }
TEST_F(Collectives, AllToAll) { check_all_to_all(*world); }
TEST_F(Collectives, AllToAllV) { check_all_to_all_v(*world); }
TEST_F(Collectives, Broadcast) { check_broadcast(*world); }
TEST_F(Collectives, SendReceive) { check_send_receive(*world); }
TEST_F(Collectives, HostCalls) { check_host_calls(*world); }
TEST_F(Collectives, Split) { check_split(*world); }
TEST_F(Collectives, ConcurrentGroups) { check_concurrent_groups(*world); }
TEST_F(Collectives, RefusedCalls) { check_refused_calls(*world); }
TEST_F(Collectives, Stats) { check_stats(*world); }

// Groups of a mesh: tp neighbours, dp across them; each sums over its own members only.
TEST_F(Collectives, MeshGroups) {
  const int tp = world->size() % 2 == 0 ? 2 : 1;
  const megalith::MeshSizes sizes =
      megalith::make_mesh_sizes({.world_size = world->size(), .tensor_model_parallel_size = tp});
  const megalith::Mesh mesh = megalith::Mesh::create(*world, sizes);
  megalith::Stream stream(megalith::DeviceType::kCpu, "comm");
  const megalith::AbortOnUnwind guard(*world);
  for (megalith::Axis axis : {megalith::Axis::kTp, megalith::Axis::kDp, megalith::Axis::kEdp}) {
    std::int32_t sum = world->rank();
    std::int32_t want = 0;
    for (int member : megalith::group_of(sizes, world->rank(), {axis})) want += member;
    mesh.axis(axis).all_reduce(stream, megalith::Tensor(&sum, megalith::DType::kInt32, {1}));
    stream.synchronize();
    EXPECT_EQ(sum, want) << name_of(axis);
  }
}

// On the ranks other than 0.
class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name(), result.line_number(), result.message());
  }
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  megalith::MpiOptions options{.timeout = std::chrono::seconds(60)};
  constexpr std::string_view kPieces = "--max-message-bytes=";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(kPieces)) {
      options.max_message_bytes = std::strtoull(argv[i] + kPieces.size(), nullptr, 10);
      options.chunk_bytes = 64 * options.max_message_bytes;
    }
  }
  megalith::MpiRuntime mpi(argc, argv, options);
  testing::InitGoogleTest(&argc, argv);
  if (mpi.rank() != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly(mpi.rank()));
  }
  const std::unique_ptr<Communicator> world = mpi.world();
  Collectives::world = world.get();
  bool failed = RUN_ALL_TESTS() != 0;
  try {
    failed = world->host_any(failed);
  } catch (const megalith::Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return failed ? 1 : 0;
}
