// Generation by a replayed step: the tokens of eager steps, whatever varies from step to step and from call to call.
#include "apps/generate/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "apps/config/memory_options.h"
#include "apps/config/program_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "core/model/config.h"
#include "tests/support/device_cases.h"
#include "tests/support/error_of.h"
#include "tests/support/words.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

using Tokens = std::vector<std::int32_t>;
using Sizes = Generator::Sizes;

constexpr Sizes kMost{.sequences = 3, .prompt = 9, .tokens = 30};
constexpr std::int32_t kVocab = 97;

class GeneratorTest : public test::OnDevice<DeviceType> {
 protected:
  Options options(const std::vector<std::string>& more, double temperature, CudaGraphImpl impl) const {
    std::vector<std::string> flags = test::words(
        "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --vocab-size 97 --swiglu "
        "--normalization RMSNorm --position-embedding-type rope --init-method-std 0.3");
    flags.insert(flags.end(), more.begin(), more.end());
    Options options = parse_flags(App::kPlan, flags).options;
    options.model.vocab_size = kVocab;
    resolve(options.model);
    options.device = device();
    options.train.seed = 5;
    options.generate.temperature = temperature;
    options.generate.top_k = temperature == 0 ? 1 : 0;
    options.memory.cuda_graph_impl = impl;
    return options;
  }

  static Tokens draw_prompts(const Sizes& sizes, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<std::int32_t> token(0, kVocab - 1);
    Tokens prompts(static_cast<std::size_t>(sizes.sequences * sizes.prompt));
    for (std::int32_t& t : prompts) t = token(random);
    return prompts;
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, GeneratorTest, testing::ValuesIn(test::devices()), test::name_of_device_case);

// The tokens of each sequence, one behind the other.
struct Model {
  explicit Model(Options o, Communicator* ranks = nullptr)
      : options(std::move(o)), generator(options, options.device, kMost, ranks) {
    generator.parameters().initialize(generator.compute(), 11);
  }
  Tokens run(const Tokens& prompts, const Sizes& sizes, std::size_t stop = 1000, const Tokens& streams = {}) {
    std::vector<Tokens> rows(static_cast<std::size_t>(sizes.sequences));
    const auto emit = [&](std::span<const std::int32_t> drawn) {
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i].push_back(drawn[i]);
      return rows[0].size() < stop;
    };
    generator.generate(prompts, sizes, emit, streams);
    Tokens all;
    for (const Tokens& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
  std::int64_t replays(std::int64_t sequences) const {
    const Graph* graph = generator.graph(sequences);
    return graph == nullptr ? -1 : graph->num_replays();
  }

  Options options;
  Generator generator;
};

TEST_P(GeneratorTest, ReplayedStepsDrawWhatEagerOnesDo) {
  const std::vector<std::string> experts = {"--bf16", "--num-experts", "4", "--disable-bias-linear"};
  for (const auto& more : {std::vector<std::string>{}, {"--bf16"}, experts}) {
    for (const double temperature : {0.0, 1.0}) {
      Model eager(options(more, temperature, CudaGraphImpl::kNone)),
          graph(options(more, temperature, CudaGraphImpl::kLocal));
      std::map<std::int64_t, std::int64_t> steps;
      unsigned seed = 0;
      for (const Sizes sizes : {Sizes{1, 4, 30}, Sizes{3, 9, 30}, Sizes{1, 9, 14}, Sizes{3, 1, 20}, Sizes{1, 1, 30}}) {
        SCOPED_TRACE(testing::Message() << testing::PrintToString(more) << " " << temperature << ", " << sizes.sequences
                                        << " x " << sizes.prompt);
        const Tokens prompts = draw_prompts(sizes, ++seed), got = graph.run(prompts, sizes);
        EXPECT_EQ(got, eager.run(prompts, sizes));
        EXPECT_EQ(got.size(), static_cast<std::size_t>(sizes.sequences * (sizes.tokens - sizes.prompt)));
        EXPECT_GT(std::set<std::int32_t>(got.begin(), got.end()).size(), 2u) << "a text that says nothing";
        // The prefill draws the first token, and the first step of a size is eager.
        std::int64_t& replays = steps.try_emplace(sizes.sequences, -1).first->second;
        replays += sizes.tokens - sizes.prompt - 1;
        EXPECT_EQ(graph.replays(sizes.sequences), replays);
        EXPECT_EQ(eager.replays(sizes.sequences), -1);
        EXPECT_EQ(graph.generator.speed().tokens, sizes.sequences * (sizes.tokens - sizes.prompt - 3));
      }
    }
  }
}

// On CUDA too, where so few rows are multiplied by a kernel whose bits do not depend on their number.
TEST_P(GeneratorTest, SequencesSideBySideAreThoseOfTheirOwn) {
  Model model(options({"--bf16"}, 0, CudaGraphImpl::kLocal));
  const Sizes three{3, 1, 24}, one{1, 1, 24};
  const Tokens prompts = draw_prompts(three, 8), all = model.run(prompts, three);
  for (std::ptrdiff_t i = 0; i < 3; ++i) {
    const Tokens own = model.run({prompts.begin() + i, prompts.begin() + i + 1}, one);
    EXPECT_EQ(own, Tokens(all.begin() + 23 * i, all.begin() + 23 * (i + 1))) << i;
  }
}

// Each stream draws its own numbers, which do not depend on the rest of the batch, nor on a captured step.
TEST_P(GeneratorTest, SamplesDependOnTheStreamAlone) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "prefills of other sizes have other kernels";
  Model model(options({}, 1, CudaGraphImpl::kLocal));
  const Sizes three{3, 9, 30}, one{1, 9, 30};
  Tokens prompts = draw_prompts(three, 8);
  std::copy_n(prompts.begin(), 9, prompts.begin() + 18);
  const Tokens streams{7, 2, 900}, all = model.run(prompts, three, 1000, streams);
  std::vector<Tokens> got;
  for (std::ptrdiff_t i = 0; i < 3; ++i) {
    got.emplace_back(all.begin() + 21 * i, all.begin() + 21 * (i + 1));
    const Tokens prompt(prompts.begin() + 9 * i, prompts.begin() + 9 * (i + 1));
    EXPECT_EQ(model.run(prompt, one, 1000, {streams[static_cast<std::size_t>(i)]}), got.back()) << i;
  }
  EXPECT_NE(got[0], got[2]) << "one prompt in two streams";
}

TEST_P(GeneratorTest, EndsWhereRequested) {
  Model model(options({}, 1, CudaGraphImpl::kLocal));
  const Sizes sizes{1, 4, 30};
  const Tokens prompts = draw_prompts(sizes, 3), whole = model.run(prompts, sizes);
  for (const std::size_t stop : {std::size_t{1}, std::size_t{2}, std::size_t{7}})
    EXPECT_EQ(model.run(prompts, sizes, stop),
              Tokens(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(stop)));
  EXPECT_EQ(model.run(prompts, sizes), whole);
}

// Of the weights each holds a shard; the graph of the one rank has the same tokens.
TEST_P(GeneratorTest, RanksThatShardTheWeightsDrawTheTokensOfOne) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "ranks are threads, which share a GPU";
  const Sizes sizes{3, 9, 20};
  const Tokens prompts = draw_prompts(sizes, 3);
  for (const bool untied : {false, true}) {
    Options wanted = options({"--bf16"}, untied ? 1 : 0, CudaGraphImpl::kLocal);
    wanted.model.untie_embeddings_and_output_weights = untied;
    const Tokens want = Model(wanted).run(prompts, sizes);
    EXPECT_GT(std::set<std::int32_t>(want.begin(), want.end()).size(), 2u);
    ThreadWorld world(3);
    world.run([&](Communicator& group) {
      Model model(wanted, &group);
      const AbortOnUnwind abort(group);
      EXPECT_EQ(model.run(prompts, sizes), want);
      EXPECT_EQ(model.run(prompts, sizes, 5), Model(wanted).run(prompts, sizes, 5));
      ASSERT_NE(model.generator.shards(), nullptr);
      // Both layers have a slot, and the end that alone is shared out: gathered once. Untied ends have one in turn, and
      // the embedding is gathered ahead.
      constexpr int kPasses = 11 + 6;
      EXPECT_EQ(model.generator.shards()->gathers(), untied ? 2 + 2 * kPasses + 1 : 2 + 1);
      EXPECT_EQ(model.replays(3), -1);
    });
  }
}

// Experts are units of their own, which all ranks share out alike and have whole while they are read.
TEST_P(GeneratorTest, RanksThatShardExpertsDrawTheTokensOfOne) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "ranks are threads, which share a GPU";
  const Sizes sizes{2, 5, 16};
  const Tokens prompts = draw_prompts(sizes, 3);
  for (const double temperature : {0.0, 1.0}) {
    const Options wanted =
        options({"--bf16", "--num-experts", "4", "--disable-bias-linear"}, temperature, CudaGraphImpl::kLocal);
    const Tokens want = Model(wanted).run(prompts, sizes);
    EXPECT_GT(std::set<std::int32_t>(want.begin(), want.end()).size(), 2u);
    ThreadWorld(2).run([&](Communicator& group) {
      Model model(wanted, &group);
      const AbortOnUnwind abort(group);
      EXPECT_EQ(model.run(prompts, sizes), want);
      ASSERT_NE(model.generator.shards(), nullptr);
      // Two layers, of which each half has a slot: gathered once, but for the head's copy.
      EXPECT_GE(model.generator.shards()->gathers(), 4);
      int experts = 0;
      for (const ParameterUnit& unit : model.generator.parameters().units()) {
        if (unit.kind != UnitKind::kExperts) continue;
        EXPECT_EQ(unit.weight_shard.numel(), unit.numel / 2);
        ++experts;
      }
      EXPECT_EQ(experts, 2);
    });
  }
}

TEST_P(GeneratorTest, SaysHowManyRanksHoldTheWeights) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "a plan, on any machine";
  Options wanted = options({"--bf16"}, 0, CudaGraphImpl::kLocal);
  wanted.model.num_layers = 32;
  wanted.model.untie_embeddings_and_output_weights = true;
  const InferenceBytes one = Generator::bytes(wanted, kMost, 1), four = Generator::bytes(wanted, kMost, 4);
  EXPECT_LT(four.weights, one.weights / 2);
  EXPECT_GT(four.weights, one.weights / 4);
  EXPECT_EQ(four.kv_cache, one.kv_cache);
  EXPECT_EQ(four.arena, one.arena);
  check_memory(wanted, kMost, 1, one.total());
  check_memory(wanted, kMost, 1, 0);
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { check_memory(wanted, kMost, 1, four.total()); }),
              testing::AllOf(testing::HasSubstr("generate on 1 rank: expected 0.00 GiB on each: 0.00 GiB of weights"),
                             testing::HasSubstr("shard the weights over more ranks: mpirun -np 4 generate")));
  EXPECT_THAT(error_of(ExitCode::kOutOfMemory, [&] { check_memory(wanted, kMost, 1, four.kv_cache); }),
              testing::HasSubstr("lower --num-samples"));
}

TEST_P(GeneratorTest, RefusesWhatItHasNoRoomFor) {
  Model model(options({}, 1, CudaGraphImpl::kLocal));
  for (const Sizes sizes : {Sizes{4, 4, 30}, Sizes{1, 10, 30}, Sizes{1, 4, 31}, Sizes{1, 0, 30}})
    EXPECT_THROW(model.run(draw_prompts(sizes, 1), sizes), Error);
}

}  // namespace
}  // namespace megalith
