#include "core/base/machine/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace megalith {

namespace {

struct Sign {
  const char* size;
  const char* rank;
  enum Weight { kDecides, kCertain, kCertainWithRank, kInherited } weight;
};

// Variables from the innermost launcher to the outermost. The variables of mpirun decide, even with a size of 1.
// In a Slurm step mpirun starts its daemons by srun, one a node, and their children inherit the step's variables.
// SLURM_STEP_NUM_TASKS is set only in a step. Slurm also sets SLURM_NTASKS for the script of sbatch and the shell of
// salloc, each of which runs once.
constexpr Sign kSigns[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", Sign::kDecides},  // Open MPI, jsrun
    {"PMI_SIZE", "PMI_RANK", Sign::kDecides},                          // MPICH, Intel MPI, Cray, srun --mpi=pmi2
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", Sign::kDecides},    // MVAPICH
    {"WORLD_SIZE", "RANK", Sign::kCertainWithRank},                    // torchrun
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", Sign::kCertain},
    {"SLURM_NTASKS", "SLURM_PROCID", Sign::kInherited},
};

std::optional<std::int64_t> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return {};
  const std::string_view digits(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) return {};
  return value;
}

bool counts(const Sign& sign, LaunchSigns signs, const Environment& environment) {
  if (signs == LaunchSigns::kAny || sign.weight == Sign::kDecides || sign.weight == Sign::kCertain) return true;
  return sign.weight == Sign::kCertainWithRank && number(environment, sign.rank);
}

}  // namespace

Launch launch_of(LaunchSigns signs, const Environment& environment) {
  for (const Sign& sign : kSigns) {
    const std::optional<std::int64_t> size = number(environment, sign.size);
    if (!size || !counts(sign, signs, environment)) continue;
    if (*size > 1)
      return {.ranks = *size,
              .rank = number(environment, sign.rank).value_or(0),
              .sign = fmt::format("{}={}", sign.size, *size)};
    if (sign.weight == Sign::kDecides) return {};
  }
  // PMIx, as in srun --mpi=pmix, reports no size.
  const std::int64_t rank = number(environment, "PMIX_RANK").value_or(0);
  if (rank > 0) return {.ranks = rank + 1, .rank = rank, .sign = fmt::format("PMIX_RANK={}", rank)};
  return {};
}

Launch launch_of(LaunchSigns signs) {
  return launch_of(signs, [](const char* name) { return std::getenv(name); });
}

namespace {

struct PlaceSigns {
  const char* launcher;
  const char* ranks;
  const char* rank;
  const char* local_ranks;
  const char* nodes;
  std::array<const char*, 4> id;
};

constexpr PlaceSigns kPlaceSigns[] = {
    {"torchrun",
     "WORLD_SIZE",
     "RANK",
     "LOCAL_WORLD_SIZE",
     "GROUP_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
    {"srun",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_PROCID",
     nullptr,
     "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_RESTART_COUNT"}},
};

}  // namespace

std::optional<LaunchPlace> place_without_mpi(const Environment& environment) {
  for (const char* const mpi : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (environment(mpi) != nullptr) return {};
  for (const PlaceSigns& signs : kPlaceSigns) {
    const auto of = [&](const char* name) { return name == nullptr ? std::nullopt : number(environment, name); };
    const auto ranks = of(signs.ranks), rank = of(signs.rank), nodes = of(signs.nodes);
    if (!ranks || !rank || *ranks < 2 || *rank >= *ranks || *ranks > (1 << 20)) continue;
    const std::int64_t local = of(signs.local_ranks).value_or(nodes == 1 ? *ranks : 0);
    LaunchPlace place{.rank = static_cast<int>(*rank),
                      .ranks = static_cast<int>(*ranks),
                      .local_ranks = static_cast<int>(std::min(local, *ranks)),
                      .launcher = signs.launcher,
                      .id = signs.launcher};
    for (const char* const name : signs.id) {
      const char* const value = environment(name);
      place.id += fmt::format(" {}", value == nullptr ? "" : value);
    }
    return place;
  }
  return {};
}

bool on_one_node(const Environment& environment) {
  const auto of = [&](const char* name) { return number(environment, name); };
  if (const auto size = of("OMPI_COMM_WORLD_SIZE")) return of("OMPI_COMM_WORLD_LOCAL_SIZE") == size;
  if (const auto place = place_without_mpi(environment)) return place->local_ranks == place->ranks;
  const bool by_srun = of("PMIX_RANK") || of("PMI_RANK");
  return !by_srun || of("SLURM_STEP_NUM_NODES") == 1;
}

}  // namespace megalith
