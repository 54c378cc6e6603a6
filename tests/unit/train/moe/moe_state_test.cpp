// State of ranks that shard experts: weights and optimizer state equal those of one rank, for any layout. Experts take
// only their share of memory; any layout loads any other's checkpoints.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "apps/checkpoint/training_checkpoint.h"
#include "apps/config/checkpoint_options.h"
#include "apps/convert/converter.h"
#include "apps/flags/complete_options.h"
#include "apps/train/run_setup.h"
#include "core/base/files/file.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {
namespace {

struct ExpertLayout {
  int ranks = 1;
  int ep = 1, etp = 1, pp = 1;
  Words more = {};

  Words flags() const {
    return more + Words{"--expert-model-parallel-size",   std::to_string(ep),
                        "--expert-tensor-parallel-size",  std::to_string(etp),
                        "--pipeline-model-parallel-size", std::to_string(pp)};
  }
};

// Each layout loads the checkpoint of the preceding one.
std::vector<ExpertLayout> layouts() {
  const Words zero1{"--use-distributed-optimizer"};
  const Words tensor = tensor_ranks(2) + Words{"--sequence-parallel"};
  const Words instances{"--num-distributed-optimizer-instances", "2"};
  return {{.ranks = 2, .ep = 2},
          {.ranks = 4, .ep = 4},
          {.ranks = 2, .etp = 2},
          {},
          {.ranks = 4, .ep = 2, .etp = 2},
          {.ranks = 4, .ep = 2, .pp = 2},
          {.ranks = 4, .ep = 2, .more = zero1},
          {.ranks = 4, .etp = 2, .more = strategy("optim_grads")},
          {.ranks = 4, .ep = 2, .more = tensor},  // its dense units have the same replicas
          {.ranks = 8, .ep = 2, .etp = 2, .more = tensor + strategy("optim_grads_params")},
          {.ranks = 2, .ep = 2, .more = {"--context-parallel-size", "2", "--use-distributed-optimizer"}},
          {.ranks = 4, .ep = 2, .more = strategy("optim_grads_params") + instances},
          {.ranks = 8,
           .ep = 2,
           .more = strategy("optim_grads_params") + instances + Words{"--outer-dp-sharding-strategy", "optim"}},
          {.ranks = 8,
           .ep = 2,
           .more = tensor + zero1 + Words{"--expert-data-parallel-sharding-strategy", "optim_grads_params"}},
          {.ranks = 2, .ep = 2}};
}

// Weights and moments with distinct numbers, all of which any layout preserves.
void fill(Rank& rank) {
  Stream& stream = rank.streams.compute;
  ParameterStore& parameters = *rank.model.gpt.parameters;
  const auto draw = [&](std::uint64_t seed, Tensor AdamWOptimizer::UnitState::*to) {
    parameters.initialize(stream, seed);
    for (std::size_t u = 0; u < parameters.units().size(); ++u)
      launch(stream, CastRows{.x = parameters.units()[u].owned_weights, .y = rank.optimizer.adamw.units()[u].*to});
  };
  draw(1, &AdamWOptimizer::UnitState::exp_avg);
  draw(2, &AdamWOptimizer::UnitState::exp_avg_sq);
  draw(3, &AdamWOptimizer::UnitState::main_params);
  parameters.initialize(stream, 4);
  stream.synchronize();
}

struct Held {
  Tensors state;
  bool copies_agree = true;
  std::vector<std::int64_t> expert_elements;  // per rank, without padding
};

// `from` empty: from fill().
Held run_held(const Words& model, const ExpertLayout& layout, const std::string& from, const std::string& to) {
  Options options = parse_flags(App::kTrain, tiny_flags() + sizes_for({}) + model + layout.flags()).options;
  const RunConfig config = complete_options(options, run_tokenizer(options, nullptr).tokenizer, layout.ranks);
  Held held;
  held.expert_elements.resize(static_cast<std::size_t>(layout.ranks));
  std::mutex mutex;
  ThreadWorld(layout.ranks, std::chrono::seconds(60)).run([&](Communicator& world) {
    const Mesh mesh = Mesh::create(world, config.mesh);
    Rank rank(options, config, DeviceType::kCpu, mesh, {}, 0);
    const AbortOnUnwind abort(world);
    if (from.empty()) {
      fill(rank);
    } else {
      std::optional<LoadedCheckpoint> found = find_wanted({.load = from}, &world);
      ASSERT_TRUE(found);
      load_tensors({.parameters = *rank.model.gpt.parameters,
                    .all_parameters = rank.model.all_parameters.get(),
                    .optimizer = &rank.optimizer.adamw,
                    .stream = rank.streams.compute},
                   *found, LoadScope::kEverything);
    }
    const SaveResult saved = save_training_checkpoint(
        rank, {.directory = to, .state = {.step = 1, .config = config_of(options)}, .shards = {}, .ranks = &world});
    EXPECT_TRUE(saved.saved) << saved.message;
    const std::lock_guard lock(mutex);
    held.copies_agree = put_state(rank, held.state) && held.copies_agree;
    for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
      if (unit.kind != UnitKind::kExperts) continue;
      for (const Parameter* parameter : unit.parameters)
        held.expert_elements[static_cast<std::size_t>(world.rank())] += parameter->shape.numel();
    }
  });
  return held;
}

// The file that convert makes of a checkpoint.
std::string weights_of_transformers(const std::string& checkpoint) {
  convert(parse_flags(App::kConvert, {"--to", "hf", "--load", checkpoint, "--save", checkpoint + ".hf"}).options);
  return read_file_or_pipe(checkpoint + ".hf/model.safetensors", 1 << 24);
}

TEST(ExpertShards, AreTheModelOfOneRankAndGoFromEachLayoutToEach) {
  const TestFolder scratch;
  const Words model = llama_flags() + Words{"--ffn-hidden-size", "32", "--num-experts", "4", "--bf16"};
  const Held want = run_held(model, {}, "", scratch.path("start"));
  std::int64_t elements = 0;
  for (const auto& [name, values] : want.state) {
    ASSERT_TRUE(std::ranges::none_of(values, [](float value) { return std::isnan(value); })) << name;
    if (name.starts_with("param/") && name.find(".mlp.experts.") != std::string::npos) elements += std::ssize(values);
  }
  EXPECT_EQ(elements, 4 * 4 * 3 * 32 * 16);  // layers, experts, matrices
  EXPECT_EQ(want.expert_elements[0], elements);
  std::string from = scratch.path("start");
  const std::string exported = weights_of_transformers(from);
  EXPECT_GT(exported.size(), static_cast<std::size_t>(2 * elements));
  int number = 0;
  for (const ExpertLayout& layout : layouts()) {
    SCOPED_TRACE(testing::PrintToString(layout.flags()));
    for (const std::string& source : {std::string(), from}) {
      const std::string to = scratch.path(std::to_string(number++));
      const Held held = run_held(model, layout, source, to);
      EXPECT_TRUE(held.copies_agree);
      EXPECT_TRUE(held.state == want.state) << (source.empty() ? "drawn" : "loaded");
      for (const std::int64_t own : held.expert_elements) EXPECT_EQ(own * layout.ep * layout.etp * layout.pp, elements);
      if (!source.empty()) from = to;
      if (layout.ep * layout.etp == 4) {
        EXPECT_TRUE(weights_of_transformers(to) == exported);
      }
    }
  }
}

// A model loaded from a file of transformers begins with the same loss for any placement of its experts.
TEST(ExpertShards, StartFromWeightsOfTransformers) {
  const TestFolder scratch;
  const Words model = llama_flags() + Words{"--ffn-hidden-size", "32", "--num-experts", "4", "--bf16"};
  run_held(model, {}, "", scratch.path("start"));
  weights_of_transformers(scratch.path("start"));
  const std::string native = scratch.path("native");
  convert(parse_flags(App::kConvert, {"--from", "hf", "--load", scratch.path("start.hf"), "--save", native,
                                      "--tokenizer-type", "byte"})
              .options);
  const auto first_loss = [&](const ExpertLayout& layout) {
    const RunResult result =
        train({.flags = sizes_for({}) + model + layout.flags() +
                        Words{"--load", native, "--finetune", "--train-iters", "1", "--moe-combine-groups", "4"},
               .ranks = layout.ranks});
    EXPECT_TRUE(result.copies_agree);
    return result;
  };
  const RunResult whole = first_loss({.ranks = 4}), split = first_loss({.ranks = 4, .etp = 2}),
                  drawn = train({.flags = sizes_for({}) + model});
  EXPECT_NE(whole.losses.at(0), drawn.losses.at(0));
  expect_losses_near(split, whole, 1e-4);  // columns of an expert are added up in another order
  for (const ExpertLayout& layout :
       {ExpertLayout{.ranks = 4, .ep = 2}, {.ranks = 4, .ep = 4}, {.ranks = 4, .ep = 2, .etp = 2}}) {
    SCOPED_TRACE(testing::PrintToString(layout.flags()));
    EXPECT_EQ(first_loss(layout).losses, (layout.etp == 1 ? whole : split).losses);
  }
}

}  // namespace
}  // namespace megalith::test
