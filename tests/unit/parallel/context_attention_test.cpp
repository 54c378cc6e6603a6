// Attention of sequences that thread ranks share, against that of one rank: outputs, all gradients, messages, hazards.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>
#include <random>

#include "core/instruments/hazard_checker.h"
#include "core/model/config.h"
#include "core/ops/elementwise/elementwise.h"
#include "parallel/context_parallel/context_group.h"
#include "parallel/context_parallel/context_parallel.h"
#include "tests/support/download.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

using Communication = ContextCommunication;

struct Sizes {
  std::int64_t samples, length, heads, groups, dim;
  std::int64_t width() const { return (heads + 2 * groups) * dim; }  // width of a fused row
};

struct Case {
  Sizes sizes;
  int ranks = 1;
  Communication communication = Communication::kP2p;
  DType dtype = DType::kFp32;
  bool recompute = false;
  std::int64_t suppressed = -1;
  std::int64_t window = 0;
};

struct Outcome {
  std::vector<float> out, d_qkv;  // unsharded sequences, [B, S, ...]
  std::int64_t hazards = 0, waits = 0, calls = 0, bytes = 0;
};

std::vector<float> normal(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = distribution(random);
  return values;
}

// Calls visit(element of this rank's [B, S / C, columns], element of the unsharded tensor) for all of them.
template <class Visit>
void for_each_element(const Sizes& z, const SequencePart& part, std::int64_t tokens, std::int64_t columns,
                      Visit&& visit) {
  for (std::int64_t b = 0; b < z.samples; ++b) {
    for (std::int64_t s = 0; s < tokens; ++s) {
      const std::int64_t mine = (b * tokens + s) * columns;
      const std::int64_t whole = (b * z.length + part.position(s, tokens)) * columns;
      for (std::int64_t c = 0; c < columns; ++c)
        visit(static_cast<std::size_t>(mine + c), static_cast<std::size_t>(whole + c));
    }
  }
}

// Unsharded sequences, [B, S, ...].
struct Inputs {
  std::vector<float> qkv, d_out;
};

Heads heads_of(const Sizes& z, const Tensor& fused) {
  const std::int64_t query = z.heads * z.dim, key = z.groups * z.dim;
  return Heads{fused.slice(1, 0, query).split_dim(1, z.heads), fused.slice(1, query, key).split_dim(1, z.groups),
               fused.slice(1, query + key, key).split_dim(1, z.groups)};
}

// One rank's share, which it adds to `outcome` under `mutex`.
void run_rank(const Case& test, const Inputs& whole_inputs, Communicator& group, std::mutex& mutex, Outcome& outcome) {
  const Sizes& z = test.sizes;
  const std::int64_t out_width = z.heads * z.dim, tokens = z.length / test.ranks;
  HazardChecker hazards;
  WaitCounter waits{.suppressed = test.suppressed};
  MemoryPool pool(DeviceType::kCpu);
  Stream compute(DeviceType::kCpu, "compute", {.hazards = &hazards, .waits = &waits});
  Stream communication(DeviceType::kCpu, "context communication", {.hazards = &hazards, .waits = &waits});
  const AbortOnUnwind guard(group);
  Arena arena(pool, Arena::Mode::kUnplanned);
  const Context ctx{.compute = compute, .arena = arena};
  ContextGroup context(group, communication);
  const Microbatch mb{.sequences = z.samples, .seq_length = tokens, .part = context.part(z.length)};
  SlotPolicies policies{};
  if (test.recompute) policies[static_cast<std::size_t>(SlotKind::kAttnProj)] = StashPolicy::kRecompute;
  const auto mine = [&](const std::vector<float>& whole, std::int64_t columns, const char* name) {
    const Tensor x = ctx.empty({z.samples * tokens, columns}, test.dtype, name);
    std::vector<float> values(static_cast<std::size_t>(x.numel()));
    for_each_element(z, mb.part, tokens, columns, [&](std::size_t to, std::size_t from) { values[to] = whole[from]; });
    upload(compute, values, x);
    return x;
  };
  const CoreAttention::Spec spec{.heads = z.heads, .query_groups = z.groups, .head_dim = z.dim, .window = test.window};
  const CoreAttentionFactory factory = context_parallel_attention(test.communication, context);
  const auto attention = factory ? factory(spec) : std::make_unique<CausalAttention>(spec);
  Stash stash(policies);
  const Tensor inputs = mine(whole_inputs.qkv, z.width(), "qkv"),
               gradient = mine(whole_inputs.d_out, out_width, "output gradient");
  const Tensor d_qkv = ctx.empty(inputs.shape, test.dtype, "qkv gradient");
  launch(compute, Fill{.x = d_qkv, .value = std::nan("")});
  Tensor out = attention->forward(ctx, mb, heads_of(z, inputs), stash);
  if (test.recompute) {
    EXPECT_FALSE(stash.has(CoreAttention::kOut));
    out = attention->forward_again(ctx, mb, stash);
  }
  attention->backward_data(ctx, mb, gradient, heads_of(z, d_qkv), stash);
  communication.synchronize();
  compute.synchronize();
  const std::lock_guard lock(mutex);
  const auto collect = [&](const Tensor& x, std::int64_t columns, std::vector<float>& whole) {
    const std::vector<float> values = download(compute, x);
    for_each_element(z, mb.part, tokens, columns, [&](std::size_t from, std::size_t to) { whole[to] = values[from]; });
  };
  collect(out, out_width, outcome.out);
  collect(d_qkv, z.width(), outcome.d_qkv);
  outcome.hazards += hazards.count();
  outcome.waits = waits.count;
  outcome.calls = group.stats().collectives;
  outcome.bytes = group.stats().bytes;
}

Outcome run(const Case& test) {
  const Sizes& z = test.sizes;
  const Inputs inputs{.qkv = normal(z.samples * z.length * z.width(), 1),
                      .d_out = normal(z.samples * z.length * z.heads * z.dim, 2)};
  Outcome outcome;
  outcome.out.resize(inputs.d_out.size(), std::nanf(""));
  outcome.d_qkv.resize(inputs.qkv.size(), std::nanf(""));
  std::mutex mutex;
  ThreadWorld world(test.ranks, std::chrono::seconds(60));
  world.run([&](Communicator& group) { run_rank(test, inputs, group, mutex, outcome); });
  return outcome;
}

double relative(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// Chunks of one token and of many tiles, grouped queries, one head, heads and dims that fill no vector.
const std::vector<Sizes> kSizes = {{1, 16, 1, 1, 5}, {2, 24, 3, 1, 8}, {1, 320, 4, 2, 16}, {3, 48, 6, 6, 7}};

class ContextAttention : public testing::TestWithParam<Communication> {};
std::string name_of_case(const testing::TestParamInfo<Communication>& test) {
  static constexpr std::array<const char*, 3> kNames = {"p2p", "a2a", "all_gather"};
  return kNames[static_cast<std::size_t>(test.param)];
}
INSTANTIATE_TEST_SUITE_P(All, ContextAttention,
                         testing::Values(Communication::kP2p, Communication::kAllToAll, Communication::kAllGather),
                         name_of_case);

TEST_P(ContextAttention, OutputsAndGradientsAreThoseOfOneRank) {
  const bool exchanges = GetParam() == Communication::kAllToAll;
  int compared = 0;
  for (const Sizes& z : kSizes) {
    const Outcome want = run({.sizes = z});
    EXPECT_EQ(want.calls, 0);
    for (const int ranks : {1, 2, 3, 4}) {
      if (z.length % (2 * ranks) != 0 || (exchanges && (z.heads % ranks != 0 || z.groups % ranks != 0))) continue;
      SCOPED_TRACE(testing::Message() << "length " << z.length << ", ranks " << ranks);
      const Outcome got = run({.sizes = z, .ranks = ranks, .communication = GetParam()});
      EXPECT_LE(relative(got.out, want.out), 1e-6);
      EXPECT_LE(relative(got.d_qkv, want.d_qkv), 2e-6);
      EXPECT_EQ(got.hazards, 0);
      if (ranks == 1) {
        EXPECT_EQ(got.out, want.out);
        EXPECT_EQ(got.d_qkv, want.d_qkv);
        continue;
      }
      ++compared;
      // p2p sends keys and values in forward and backward, and their gradients home. a2a has two exchanges in each
      // direction; all_gather gathers twice and reduces once.
      const std::int64_t calls = exchanges ? 4 : GetParam() == Communication::kP2p ? 3 * ranks - 2 : 3;
      EXPECT_EQ(got.calls, calls);
      EXPECT_GE(got.bytes, 4 * z.samples * z.length / ranks * z.groups * z.dim);
    }
  }
  EXPECT_GE(compared, 3);
}

TEST_P(ContextAttention, AWindowNeedsUnsplitSequences) {
  const Sizes z{.samples = 2, .length = 48, .heads = 4, .groups = 2, .dim = 8};
  const Outcome all = run({.sizes = z});
  for (const std::int64_t window : {1, 7, 30, 47, 48, 100}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    const Case split{.sizes = z, .ranks = 2, .communication = GetParam(), .window = window};
    if (GetParam() != Communication::kAllToAll && window < z.length) {
      EXPECT_THROW(run(split), Error);
      continue;
    }
    const Outcome want = run({.sizes = z, .window = window}), got = run(split);
    EXPECT_EQ(relative(want.out, all.out) == 0, window >= z.length);
    EXPECT_LE(relative(got.out, want.out), 1e-6);
    EXPECT_LE(relative(got.d_qkv, want.d_qkv), 2e-6);
    EXPECT_EQ(got.hazards, 0);
  }
}

TEST_P(ContextAttention, InBf16ErrsNoMoreThanOneRank) {
  const Sizes z{.samples = 2, .length = 128, .heads = 4, .groups = 2, .dim = 16};
  const Outcome exact = run({.sizes = z}), one = run({.sizes = z, .dtype = DType::kBf16});
  const Outcome two = run({.sizes = z, .ranks = 2, .communication = GetParam(), .dtype = DType::kBf16});
  EXPECT_LE(relative(two.out, exact.out), 1.5 * relative(one.out, exact.out));
  EXPECT_LE(relative(two.d_qkv, exact.d_qkv), 1.5 * relative(one.d_qkv, exact.d_qkv));
}

TEST_P(ContextAttention, RecomputedOutputsChangeNoBit) {
  const Sizes z{.samples = 2, .length = 24, .heads = 4, .groups = 2, .dim = 8};
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    const Outcome kept = run({.sizes = z, .ranks = 2, .communication = GetParam(), .dtype = dtype});
    const Outcome again = run({.sizes = z, .ranks = 2, .communication = GetParam(), .dtype = dtype, .recompute = true});
    EXPECT_EQ(again.out, kept.out);
    EXPECT_EQ(again.d_qkv, kept.d_qkv);
    EXPECT_GT(again.calls, kept.calls);
    EXPECT_EQ(again.hazards, 0);
  }
}

// Waits for events are needed: without one accesses are unordered.
TEST_P(ContextAttention, WithoutAnyOneWaitAHazardIsFound) {
  const Sizes z{.samples = 1, .length = 12, .heads = 3, .groups = 3, .dim = 4};
  const Case test{.sizes = z, .ranks = 3, .communication = GetParam()};
  const std::int64_t waits = run(test).waits;
  EXPECT_GT(waits, 0);
  int found = 0;
  for (std::int64_t wait = 0; wait < waits; ++wait) {
    Case without = test;
    without.suppressed = wait;
    found += run(without).hazards > 0 ? 1 : 0;
  }
  // A message that follows another on its stream is ordered after that one's waits.
  EXPECT_GE(found, waits / 2);
}

TEST(SequencePart, ChunksCoverTheSequenceOnce) {
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    const std::int64_t length = 24, rows = length / ranks;
    std::vector<int> seen(static_cast<std::size_t>(length));
    std::int64_t first_pairs = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const SequencePart part = part_of_sequence(length, rank, ranks);
      std::int64_t pairs = 0, before = -1;  // pairs of a query and a key that it sees
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t position = part.position(row, rows);
        EXPECT_GT(position, before);
        before = position;
        ++seen.at(static_cast<std::size_t>(position));
        pairs += position + 1;
      }
      if (rank == 0) first_pairs = pairs;
      EXPECT_EQ(pairs, first_pairs) << rank;
    }
    EXPECT_EQ(seen, std::vector<int>(static_cast<std::size_t>(length), 1));
  }
}

TEST(ContextParallelSizes, NameTheFlagsAndWhatWouldFit) {
  ModelConfig config{.num_layers = 1,
                     .hidden_size = 24,
                     .num_attention_heads = 6,
                     .num_query_groups = 2,
                     .seq_length = 36,
                     .vocab_size = 8};
  resolve(config);
  const auto refused = [&config](const ContextParallelSizes& sizes) -> std::string {
    try {
      check_context_parallel(config, sizes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "";
  };
  const auto expect_part = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(refused({.context = 2}), "");
  EXPECT_EQ(refused({.context = 2, .communication = Communication::kAllToAll}), "");
  const std::string length = refused({.context = 4});
  expect_part(length, "--context-parallel-size and --seq-length: expected a length that is a multiple of 8");
  expect_part(length, "use --seq-length 32 or 40, or --context-parallel-size 1 or 2 or 3 or 6 or 9 or 18");
  expect_part(refused({.context = 2, .tensor = 4, .sequence_parallel = true}), "a multiple of 8");
  const std::string heads = refused({.context = 2, .tensor = 2, .communication = Communication::kAllToAll});
  expect_part(heads, "--cp-comm-type a2a, --context-parallel-size and --num-attention-heads");
  expect_part(heads, "--context-parallel-size 1 or 3, or --cp-comm-type p2p");
  expect_part(refused({.context = 3, .communication = Communication::kAllToAll}), "--num-query-groups 2");
}

}  // namespace
}  // namespace megalith
