#include "core/base/machine/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace megalith {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

// "RANK of RANKS, SIGN" as seen by a program of one process and by train; "alone".
std::string seen(const Variables& variables, LaunchSigns signs) {
  const Launch launch = launch_of(signs, environment_of(variables));
  if (launch.ranks == 1) return "alone";
  return std::to_string(launch.rank) + " of " + std::to_string(launch.ranks) + ", " + launch.sign;
}

struct Case {
  const char* title;
  Variables variables;
  std::string certain;
  std::string any;
};

const Case kCases[] = {
    {"nothing", {}, "alone", "alone"},
    {"mpirun of Open MPI",
     {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"PMIX_RANK", "3"}},
     "3 of 4, OMPI_COMM_WORLD_SIZE=4",
     "3 of 4, OMPI_COMM_WORLD_SIZE=4"},
    {"mpiexec of MPICH", {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}, "1 of 2, PMI_SIZE=2", "1 of 2, PMI_SIZE=2"},
    {"MVAPICH", {{"MV2_COMM_WORLD_SIZE", "2"}}, "0 of 2, MV2_COMM_WORLD_SIZE=2", "0 of 2, MV2_COMM_WORLD_SIZE=2"},
    {"torchrun", {{"WORLD_SIZE", "8"}, {"RANK", "5"}}, "5 of 8, WORLD_SIZE=8", "5 of 8, WORLD_SIZE=8"},
    {"a script that exports WORLD_SIZE", {{"WORLD_SIZE", "8"}}, "alone", "0 of 8, WORLD_SIZE=8"},
    {"srun",
     {{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}},
     "2 of 4, SLURM_STEP_NUM_TASKS=4",
     "2 of 4, SLURM_STEP_NUM_TASKS=4"},
    {"srun --mpi=pmix, which tells no size", {{"PMIX_RANK", "2"}}, "2 of 3, PMIX_RANK=2", "2 of 3, PMIX_RANK=2"},
    {"the script of sbatch, the shell of salloc",
     {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}},
     "alone",
     "0 of 8, SLURM_NTASKS=8"},
    {"mpirun -np 1 in a job of Slurm, its daemons started by srun",
     {{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"WORLD_SIZE", "8"}},
     "alone",
     "alone"},
    {"one task", {{"SLURM_STEP_NUM_TASKS", "1"}, {"WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}}, "alone", "alone"},
    {"no numbers", {{"WORLD_SIZE", "many"}, {"RANK", "0"}, {"PMI_SIZE", "-2"}, {"PMIX_RANK", ""}}, "alone", "alone"},
};

TEST(Launch, IsSeenInTheEnvironment) {
  for (const Case& one : kCases) {
    EXPECT_EQ(seen(one.variables, LaunchSigns::kCertain), one.certain) << one.title;
    EXPECT_EQ(seen(one.variables, LaunchSigns::kAny), one.any) << one.title;
  }
}

TEST(Launch, KnowsWhetherAllRanksAreHere) {
  const auto here = [](const Variables& variables) { return on_one_node(environment_of(variables)); };
  EXPECT_TRUE(here({}));
  EXPECT_TRUE(here({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}}));
  EXPECT_FALSE(here({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_FALSE(here({{"OMPI_COMM_WORLD_SIZE", "8"}}));
  EXPECT_FALSE(here({{"PMIX_RANK", "0"}}));
  EXPECT_FALSE(here({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_NODES", "2"}}));
  EXPECT_TRUE(here({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_NODES", "1"}}));
  EXPECT_TRUE(here({{"WORLD_SIZE", "8"}, {"RANK", "0"}, {"LOCAL_WORLD_SIZE", "8"}}));
  EXPECT_FALSE(here({{"WORLD_SIZE", "8"}, {"RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}}));
  EXPECT_FALSE(here({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_NODES", "2"}}));
}

// "LAUNCHER: rank RANK of RANKS, LOCAL here, ID", or "none".
std::string place(const Variables& variables) {
  const std::optional<LaunchPlace> found = place_without_mpi(environment_of(variables));
  if (!found) return "none";
  return found->launcher + ": rank " + std::to_string(found->rank) + " of " + std::to_string(found->ranks) + ", " +
         std::to_string(found->local_ranks) + " here, " + found->id;
}

TEST(Launch, FindsThePlaceAmongRanksWithoutMpi) {
  const Variables torchrun = {{"WORLD_SIZE", "8"},          {"RANK", "5"},           {"LOCAL_WORLD_SIZE", "8"},
                              {"MASTER_ADDR", "a"},         {"MASTER_PORT", "2950"}, {"TORCHELASTIC_RUN_ID", "r"},
                              {"SLURM_STEP_NUM_TASKS", "1"}};
  const Variables srun = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_JOB_ID", "77"}};
  const auto with = [](Variables variables, const char* name, const char* value) {
    variables[name] = value;
    return place(variables);
  };
  EXPECT_EQ(place(torchrun), "torchrun: rank 5 of 8, 8 here, torchrun a 2950 r ");
  EXPECT_EQ(with(torchrun, "LOCAL_WORLD_SIZE", "2"), "torchrun: rank 5 of 8, 2 here, torchrun a 2950 r ");
  EXPECT_EQ(with(torchrun, "RANK", "8"), "none");
  EXPECT_EQ(with(torchrun, "WORLD_SIZE", "1"), "none");
  EXPECT_EQ(with(srun, "SLURM_STEP_NUM_NODES", "1"), "srun: rank 2 of 4, 4 here, srun 77   ");
  EXPECT_EQ(with(srun, "SLURM_STEP_NUM_NODES", "2"), "srun: rank 2 of 4, 0 here, srun 77   ");
  EXPECT_EQ(place({{"WORLD_SIZE", "8"}}), "none");
  EXPECT_EQ(place({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}), "none");
  // MPI's launcher is recognized first.
  for (const char* mpi : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    EXPECT_EQ(with(torchrun, mpi, "1"), "none") << mpi;
    EXPECT_EQ(with(srun, mpi, "1"), "none") << mpi;
  }
}

}  // namespace
}  // namespace megalith
