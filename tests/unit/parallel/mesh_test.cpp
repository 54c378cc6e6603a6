// Coordinates and groups against brute force, for all sizes up to 48 ranks; errors; the groups made by Mesh::create.
#include "parallel/mesh/mesh.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/mesh/instance_groups.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

constexpr std::array kDense = {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp};
constexpr std::array kExpert = {Axis::kEtp, Axis::kEp, Axis::kEdp, Axis::kPp};

// Walks the four nested loops of a view, the slowest axis outermost, and numbers the ranks as they come.
std::vector<std::array<int, 4>> enumerate(const MeshSizes& sizes, const std::array<Axis, 4>& order) {
  std::vector<std::array<int, 4>> ranks;
  for (int slowest = 0; slowest < sizes[order[3]]; ++slowest) {
    for (int third = 0; third < sizes[order[2]]; ++third) {
      for (int second = 0; second < sizes[order[1]]; ++second) {
        for (int fastest = 0; fastest < sizes[order[0]]; ++fastest) ranks.push_back({fastest, second, third, slowest});
      }
    }
  }
  return ranks;
}

void check_view(const MeshSizes& sizes, const std::array<Axis, 4>& order) {
  const std::vector<std::array<int, 4>> want = enumerate(sizes, order);
  ASSERT_EQ(static_cast<std::int64_t>(want.size()), sizes.world());
  for (std::size_t rank = 0; rank < want.size(); ++rank) {
    const MeshCoordinates got = coordinates_of(sizes, static_cast<int>(rank));
    for (std::size_t a = 0; a < 4; ++a) {
      ASSERT_EQ(got[order[a]], want[rank][a]) << name_of(order[a]) << " of rank " << rank;
      // Groups of one axis, and of this axis with the next.
      const std::size_t b = (a + 1) % 4;
      std::vector<int> one;
      std::vector<int> two;
      for (std::size_t other = 0; other < want.size(); ++other) {
        bool same_but_a = true;
        bool same_but_both = true;
        for (std::size_t d = 0; d < 4; ++d) {
          if (want[other][d] == want[rank][d] || d == a) continue;
          same_but_a = false;
          if (d != b) same_but_both = false;
        }
        if (same_but_a) one.push_back(static_cast<int>(other));
        if (same_but_both) two.push_back(static_cast<int>(other));
      }
      ASSERT_EQ(group_of(sizes, static_cast<int>(rank), {order[a]}), one);
      ASSERT_EQ(group_of(sizes, static_cast<int>(rank), {order[a], order[b]}), two);
    }
  }
}

TEST(Mesh, CoordinatesAndGroupsAgreeWithBruteForce) {
  int layouts = 0;
  const std::int64_t largest = 48 / test::one_of(3);
  for (std::int64_t world : {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}) {
    if (world > largest) break;
    for (std::int64_t tp = 1; tp <= world; ++tp) {
      for (std::int64_t cp : {1, 2, 3}) {
        for (std::int64_t pp : {1, 2, 4}) {
          if (world % (tp * cp * pp) != 0) continue;
          for (std::int64_t ep : {1, 2, 4, 6}) {
            for (std::int64_t etp : {std::int64_t{1}, tp}) {
              if (world % (etp * ep * pp) != 0) continue;
              const MeshSizes sizes = make_mesh_sizes({.world_size = world,
                                                       .tensor_model_parallel_size = tp,
                                                       .context_parallel_size = cp,
                                                       .pipeline_model_parallel_size = pp,
                                                       .expert_model_parallel_size = ep,
                                                       .expert_tensor_parallel_size = etp});
              ASSERT_EQ(sizes.tp * sizes.cp * sizes.dp * sizes.pp, world);
              ASSERT_EQ(sizes.etp * sizes.ep * sizes.edp * sizes.pp, world);
              ASSERT_NO_FATAL_FAILURE(check_view(sizes, kDense));
              ASSERT_NO_FATAL_FAILURE(check_view(sizes, kExpert));
              ++layouts;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(layouts, test::one_of(2) == 2 ? 100 : 200);
}

// Megatron's documented example: 16 ranks with tp 2 and pp 4.
TEST(Mesh, NumbersRanksAsMegatron) {
  const MeshSizes sizes =
      make_mesh_sizes({.world_size = 16, .tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 4});
  EXPECT_THAT(group_of(sizes, 0, {Axis::kTp}), ElementsAre(0, 1));
  EXPECT_THAT(group_of(sizes, 13, {Axis::kTp}), ElementsAre(12, 13));
  EXPECT_THAT(group_of(sizes, 0, {Axis::kDp}), ElementsAre(0, 2));
  EXPECT_THAT(group_of(sizes, 15, {Axis::kDp}), ElementsAre(13, 15));
  EXPECT_THAT(group_of(sizes, 0, {Axis::kPp}), ElementsAre(0, 4, 8, 12));
  EXPECT_THAT(group_of(sizes, 11, {Axis::kPp}), ElementsAre(3, 7, 11, 15));
  EXPECT_THAT(group_of(sizes, 5, {Axis::kPp, Axis::kTp}), ElementsAre(0, 1, 4, 5, 8, 9, 12, 13));
}

TEST(Mesh, ExpertsAreWholeOnEachRankUnlessSaid) {
  EXPECT_EQ(make_mesh_sizes({.world_size = 8, .tensor_model_parallel_size = 4}).etp, 1);
  const MeshSizes sizes =
      make_mesh_sizes({.world_size = 8, .tensor_model_parallel_size = 4, .expert_model_parallel_size = 8});
  EXPECT_EQ(sizes.etp, 1);
  EXPECT_EQ(sizes.edp, 1);
  EXPECT_EQ(sizes.dp, 2);
}

std::string refused(const MeshRequest& request) {
  return error_of(ExitCode::kUsage, [&] { make_mesh_sizes(request); });
}

TEST(Mesh, AWorldThatDoesNotFitIsAnErrorWithTheValuesThatWould) {
  EXPECT_EQ(
      refused({.world_size = 6, .tensor_model_parallel_size = 4}),
      "--tensor-model-parallel-size 4: expected a number of ranks that is a multiple of 4, got 6; start 4 or 8 ranks, "
      "or use --tensor-model-parallel-size 1 or 2 or 3 or 6");
  EXPECT_EQ(
      refused({.world_size = 2, .tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}),
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2: expected a number of ranks that is a multiple "
      "of 4, got 2; start 4 or 8 ranks, or use --tensor-model-parallel-size 1, or use --pipeline-model-parallel-size "
      "1");
  EXPECT_THAT(refused({.world_size = 6, .expert_model_parallel_size = 4}),
              HasSubstr("--expert-model-parallel-size 4: expected a number of ranks that is a multiple of 4, got 6"));
  EXPECT_THAT(refused({.world_size = 4, .tensor_model_parallel_size = 0}),
              HasSubstr("--tensor-model-parallel-size: expected a size from 1 to the number of ranks, got 0"));
  EXPECT_THAT(refused({.world_size = 4, .context_parallel_size = -2}), HasSubstr("--context-parallel-size"));
  // A product beyond 64 bits.
  const std::int64_t huge = std::int64_t{1} << 31;
  EXPECT_THAT(refused({.world_size = 4,
                       .tensor_model_parallel_size = huge,
                       .context_parallel_size = huge,
                       .pipeline_model_parallel_size = huge}),
              HasSubstr("expected a number of ranks"));
}

TEST(Mesh, LabelsAndDescribesRanks) {
  const MeshSizes sizes =
      make_mesh_sizes({.world_size = 16, .tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2});
  EXPECT_EQ(rank_label(sizes, 9), "rank 9/16 (dp 0 pp 1 tp 1)");
  const MeshSizes experts =
      make_mesh_sizes({.world_size = 4, .context_parallel_size = 2, .expert_model_parallel_size = 4});
  EXPECT_EQ(rank_label(experts, 3), "rank 3/4 (dp 1 pp 0 tp 0 cp 1 ep 3)");
  const MeshSizes split =
      make_mesh_sizes({.world_size = 8, .expert_model_parallel_size = 2, .expert_tensor_parallel_size = 2});
  EXPECT_EQ(rank_label(split, 7), "rank 7/8 (dp 7 pp 0 tp 0 ep 1 etp 1)");
  EXPECT_EQ(describe_sizes(experts), "dense tp 1 x cp 2 x dp 2 x pp 1, expert etp 1 x ep 4 x edp 1 x pp 1");
}

void check_groups(Communicator& world, const MeshSizes& sizes) {
  const Mesh mesh = Mesh::create(world, sizes);
  EXPECT_EQ(mesh.label(), rank_label(sizes, world.rank()));
  EXPECT_EQ(&mesh.world(), &world);
  const std::pair<Axis, const Communicator&> groups[] = {
      {Axis::kTp, mesh.tp()}, {Axis::kCp, mesh.cp()}, {Axis::kPp, mesh.pp()}};
  for (const auto& [axis, group] : groups) {
    EXPECT_EQ(group.size(), sizes[axis]);
    EXPECT_EQ(group.rank(), mesh.coordinates()[axis]);
    EXPECT_EQ(group.name(), name_of(axis));
  }
  EXPECT_EQ(mesh.dp_cp().size(), sizes.dp * sizes.cp);
  EXPECT_EQ(mesh.dp_cp().name(), sizes.cp > 1 ? "dp_cp" : "dp");
  EXPECT_EQ(mesh.dp_cp().rank(), mesh.coordinates().dp * sizes.cp + mesh.coordinates().cp);
  EXPECT_EQ(mesh.dispatch().size(), sizes.etp * sizes.ep);
  EXPECT_EQ(mesh.dispatch().rank(), mesh.coordinates().ep * sizes.etp + mesh.coordinates().etp);
  EXPECT_EQ(mesh.dispatch().name(), "dispatch");
}

void check_groups_of_eight(const MeshSizes& sizes) {
  ThreadWorld(8).run([&](Communicator& world) {
    check_groups(world, sizes);
    // The members equal those of group_of.
    const Mesh mesh = Mesh::create(world, sizes);
    const auto expect_members = [&](Communicator& group, std::initializer_list<Axis> axes) {
      const std::vector<std::string> members = group.host_all_gather(std::to_string(world.rank()));
      const std::vector<int> want = group_of(sizes, world.rank(), axes);
      ASSERT_EQ(members.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(members[i], std::to_string(want[i]));
    };
    expect_members(mesh.tp(), {Axis::kTp});
    expect_members(mesh.cp(), {Axis::kCp});
    expect_members(mesh.pp(), {Axis::kPp});
    expect_members(mesh.dp_cp(), {Axis::kCp, Axis::kDp});
    expect_members(*mesh.make_group({Axis::kEdp}, "edp"), {Axis::kEdp});
    expect_members(mesh.dispatch(), {Axis::kEtp, Axis::kEp});
  });
  for (int rank = 0; rank < 8; ++rank) {
    PlanCommunicator world("world", {.rank = rank, .size = 8});
    check_groups(world, sizes);
  }
}

TEST(Mesh, MakesTheGroupsOfItsRank) {
  check_groups_of_eight(make_mesh_sizes({.world_size = 8,
                                         .tensor_model_parallel_size = 2,
                                         .context_parallel_size = 2,
                                         .pipeline_model_parallel_size = 2,
                                         .expert_model_parallel_size = 2,
                                         .expert_tensor_parallel_size = 2}));
  check_groups_of_eight(make_mesh_sizes({.world_size = 8,
                                         .context_parallel_size = 2,
                                         .pipeline_model_parallel_size = 2,
                                         .expert_model_parallel_size = 2}));
  check_groups_of_eight(make_mesh_sizes({.world_size = 8, .tensor_model_parallel_size = 2}));
}

TEST(Mesh, RefusesAWorldOfAnotherSize) {
  PlanCommunicator world("world", {.rank = 0, .size = 4});
  EXPECT_THROW(Mesh::create(world, make_mesh_sizes({.world_size = 8})), Error);
}

// Groups of six ranks with instances: ranks that shard a copy, and ranks that hold the same shard.
TEST(InstanceGroups, AreNeighboursAndThoseOfEqualPlace) {
  struct Members {
    int instances;
    std::vector<std::string> shards, instances_of;  // for rank 3
  };
  for (const Members& want : {Members{1, {"0", "1", "2", "3", "4", "5"}, {"3"}},
                              {2, {"3", "4", "5"}, {"0", "3"}},
                              {3, {"2", "3"}, {"1", "3", "5"}},
                              {6, {"3"}, {"0", "1", "2", "3", "4", "5"}}}) {
    ThreadWorld(6).run([&](Communicator& world) {
      const InstanceGroups groups = split_into_instances(world, want.instances);
      const std::string rank = std::to_string(world.rank());
      const std::vector<std::string> shards = groups.shards->host_all_gather(rank);
      const std::vector<std::string> instances = groups.instances->host_all_gather(rank);
      if (world.rank() != 3) return;
      EXPECT_EQ(shards, want.shards);
      EXPECT_EQ(instances, want.instances_of);
      EXPECT_EQ(groups.shards->name(), world.name() + "_inner");
      EXPECT_EQ(groups.instances->name(), world.name() + "_outer");
    });
  }
}

}  // namespace
}  // namespace megalith
