// Random draws of layouts and features (tests/unit/train/draws.h) on the ranks of a world, many in one start:
//   SEED=1 MEGALITH_DRAWS=100 mpirun -np 4 mpi_draws [--device=cuda] [GoogleTest's flags]
// Each is compared bitwise with the plain run of its class: losses, norms, weights and optimizer state.
// The exit code is 77, for a skipped test, if ranks outnumber GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train/run_setup.h"
#include "tests/distributed/training_ranks.h"
#include "tests/unit/train/draws.h"

namespace megalith::test {
namespace {

// Set by main.
Communicator* world = nullptr;    // hosts
Communicator* devices = nullptr;  // devices
DeviceType device = DeviceType::kCpu;

std::int64_t values_gathered = 0;  // on rank 0

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

Words device_flags() {
  return device == DeviceType::kCuda ? words("--device cuda --deterministic-mode --hidden-size 128 --seq-length 64")
                                     : words("--check-hazards");
}

RankActivity activity(Rank& rank) {
  RankActivity did;
  if (rank.graphs) did.replays = rank.graphs->stats().replays;
  if (rank.offload) did.offload = rank.offload->transfer.stats();
  if (rank.units.sharded) did.units_gathered = rank.units.sharded->gathers();
  return did;
}

std::string bytes_of(const Tensors& tensors) {
  std::string bytes;
  const auto add = [&](const auto& values) {
    const std::size_t size = values.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes.append(reinterpret_cast<const char*>(values.data()), size * sizeof(values[0]));
  };
  for (const auto& [name, values] : tensors) {
    add(name);
    add(values);
  }
  return bytes;
}

Tensors tensors_of(std::string_view bytes) {
  const auto take = [&](auto values) {
    std::size_t size = 0;
    bytes.copy(reinterpret_cast<char*>(&size), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    values.resize(size);
    bytes.copy(reinterpret_cast<char*>(values.data()), size * sizeof(values[0]));
    bytes.remove_prefix(size * sizeof(values[0]));
    return values;
  };
  Tensors tensors;
  while (!bytes.empty()) {
    const std::string name = take(std::string());
    tensors[name] = take(std::vector<float>());
  }
  return tensors;
}

// Gathers unsharded tensors on rank 0 from all ranks' slices; false if two ranks hold different bits of one slice.
bool gather_state(Rank& rank, Tensors& whole) {
  Tensors slices;
  bool agrees = put_state(rank, slices);
  const std::vector<std::string> all = world->host_all_gather(bytes_of(slices));
  if (world->rank() != 0) return agrees;
  for (const std::string& bytes : all) {
    for (const auto& [name, values] : tensors_of(bytes)) {
      std::vector<float>& to = whole[name];
      to.resize(values.size(), std::nanf(""));
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) continue;
        agrees = agrees && (std::isnan(to[i]) || to[i] == values[i]);
        to[i] = values[i];
        ++values_gathered;
      }
    }
  }
  return agrees;
}

Outcome run(const Words& flags, int) {
  const TestFolder scratch;
  const std::string metrics = scratch.path("metrics.jsonl");
  std::optional<RunSetup> setup;
  const std::optional<RankFailure> failure = failure_of_any(*world, [&] {
    const Words all = tiny_flags() + flags + device_flags() + Words{"--metrics-jsonl", metrics};
    setup = prepare_run(parse_flags(App::kTrain, all).options, world->rank(), world->size());
  });
  if (failure) return {.refused = failure->code == ExitCode::kUsage, .problem = failure->message};
  try {
    const StopRequest stop;
    Trainer trainer(std::move(*setup), *devices, stop, world);
    Outcome outcome;
    outcome.run.code = trainer.run();
    Rank& rank = trainer.rank();
    outcome.run.ranks = {activity(rank)};
    outcome.run.copies_agree = gather_state(rank, outcome.run.whole_state);
    if (trainer.hazards() != nullptr) outcome.run.hazards = trainer.hazards()->count();
    outcome.run.memory_as_planned = rank.memory.arena.touched_bytes() == trainer.plans().block_bytes() &&
                                    rank.memory.pool.peak_allocated_bytes() == memory_use(trainer.plans()).total();
    if (world->rank() == 0) read_metrics(metrics, outcome.run);
    return outcome;
  } catch (const EveryRankFailed& error) {  // the same on all of them
    return {.refused = error.code() == ExitCode::kUsage, .problem = error.what()};
  }
}

TEST(MpiDraws, ChangeNoBit) {
  const int seed = number_of("SEED", 1), first = number_of("MEGALITH_FIRST_DRAW", 0);
  const int count = number_of("MEGALITH_DRAWS", 20);
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("megalith_draws_{}_{}", world->size(), seed)).string();
  const auto clear = [&] {
    if (world->rank() == 0) std::filesystem::remove_all(folder);
    world->host_barrier();
  };
  Draws draws({.run = run,
               .folder = folder,
               .clear = clear,
               .takes_fewer_ranks = false,
               .has_metrics = world->rank() == 0,
               .any = [](bool here) { return world->host_any(here); }});
  for (int number = first; number < first + count; ++number) {
    const std::string problem =
        draws.run({.seed = static_cast<std::uint64_t>(seed), .number = number, .ranks = world->size()});
    if (!problem.empty()) ADD_FAILURE() << problem;
  }
  clear();
  if (world->rank() == 0) fmt::print("seed {}: {}", seed, text_of(draws.totals()));
  EXPECT_EQ(draws.totals().draws, count);
  EXPECT_EQ(values_gathered > 0, world->rank() == 0);
  if (count < 20) return;
  EXPECT_GT(draws.totals().graphs, 0);
  EXPECT_GT(draws.totals().offloads, 0);
  EXPECT_GT(draws.totals().resumed, 0);
}

}  // namespace
}  // namespace megalith::test

int main(int argc, char** argv) {
  using namespace megalith;
  using namespace megalith::test;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device=cuda") {
      device = DeviceType::kCuda;
    } else if (!argument.starts_with("--gtest")) {
      fmt::print(stderr, "mpi_draws: expected --device=cuda or --gtest_..., got {}\n", argument);
      return 2;
    }
  }
  return run_training_tests(argc, argv, device, world, devices);
}
