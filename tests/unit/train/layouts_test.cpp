// Tensor, sequence, pipeline, data and context parallelism combined, with and without the distributed optimizer. Every
// layout trains the model of one rank; schedule and recompute change no bit. Cases that fit eight ranks are chosen
// pairwise: each layout occurs, with or without sequence parallelism, and each two values of two factors occur
// together. MEGALITH_ALL_LAYOUTS=1 runs everything (MEGALITH_ALL_LAYOUTS=N one of N).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>

#include "tests/support/pairwise.h"
#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr std::int64_t kShort = 1, kLong = 2;
#else
constexpr std::int64_t kShort = 2, kLong = 20;
#endif

// Values of the factors of a case, in this order.
enum Factor {
  kTensor,
  kPipeline,
  kData,
  kContext,  // 0: none; otherwise 2 ranks and the form of kCommunications
  kSequence,
  kFamily,
  kSchedule,
  kDtype,
  kRecompute,
  kChunks,
  kSharing,
  kNumFactors
};
const std::array<std::string, 4> kCommunications = {"", "p2p", "a2a", "all_gather"};
using Case = Combination<kNumFactors>;

Layout layout_of(const Case& c) {
  return {.tensor = c[kTensor],
          .sequence = c[kSequence] != 0,
          .overlap = c[kSequence] == 2,
          .pipeline = c[kPipeline],
          .data = c[kData],
          .schedule = schedules()[static_cast<std::size_t>(c[kSchedule])],
          .sharing = static_cast<Sharing>(c[kSharing]),
          .context = c[kContext] == 0 ? 1 : 2,
          .communication = kCommunications[static_cast<std::size_t>(c[kContext])]};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = combinations<kNumFactors>({{{1, 2, 4},
                                                        {1, 2, 4},
                                                        {1, 2},
                                                        {0, 1, 2, 3},
                                                        {0, 1, 2},
                                                        {0, 1, 2},
                                                        {0, 1, 2, 3, 4, 5},
                                                        {0, 1},
                                                        {0, 1, 2},
                                                        {0, 1},
                                                        {0, 1, 2}}});
  std::erase_if(cases, [](const Case& c) {
    constexpr std::array<int, 3> kGroups = {4, 2, 1};  // groups of keys and values, by family
    const int context = c[kContext] == 0 ? 1 : 2;
    const bool heads_fit = kGroups[static_cast<std::size_t>(c[kFamily])] % (c[kTensor] * context) == 0;
    return c[kTensor] * c[kPipeline] * c[kData] * context > 8 || (c[kSequence] != 0 && c[kTensor] == 1) ||
           (c[kSharing] != 0 && c[kData] * context == 1) ||
           (kCommunications[static_cast<std::size_t>(c[kContext])] == "a2a" && !heads_fit);
  });
  return cases;
}

// Each layout is in it.
std::vector<Case> chosen_of(const std::vector<Case>& all) {
  return pairwise<kNumFactors>(all, [](const Case& c) {
    return ((c[kContext] == 0 ? 0 : 5 * 5 * 5) + c[kTensor] * 5 + c[kPipeline]) * 5 + c[kData];
  });
}

Words recompute(int which) {
  if (which == 1) return {"--recompute-granularity", "full", "--recompute-method", "uniform"};
  if (which == 2) return {"--recompute-granularity", "selective", "--recompute-modules", "core_attn", "mlp_act"};
  return {};
}
Words dtype(int which) { return which == 1 ? Words{"--bf16"} : Words{}; }
Words chunks(int which) { return which == 1 ? Words{"--loss-chunk-size", "3"} : Words{}; }
Words steps(std::int64_t count) { return {"--train-iters", std::to_string(count)}; }

// Runs by their flags and ranks, so that a run that many cases compare with executes once.
const RunResult& run_once(const Words& flags, int ranks) {
  static std::map<std::pair<Words, int>, RunResult> runs;
  const auto [run, is_new] = runs.try_emplace({flags, ranks});
  if (is_new) run->second = train({.flags = flags, .ranks = ranks});
  return run->second;
}

const Family& family_of(const Case& c) { return families()[static_cast<std::size_t>(c[kFamily])]; }
// Model flags for the sizes of the layout's runs.
Words model_of(const Case& c) {
  return sizes_for(layout_of(c)) + family_of(c).flags +
         Words{"--hidden-dropout", "0.1", "--lr-warmup-iters", "2", "--lr-decay-iters", "20"};
}
bool is_zero(const Case& c, const std::string& name) {
  const std::string& no_gradient = family_of(c).no_gradient;
  return !no_gradient.empty() && name.ends_with(no_gradient);
}

double norm_of_all(const Tensors& tensors, const Tensors* less = nullptr) {
  double squares = 0;
  for (const auto& [name, values] : tensors)
    squares += std::pow(less == nullptr ? norm(values) : norm_of_difference(values, less->at(name)), 2);
  return std::sqrt(squares);
}

// Expects in fp32 the gradients of one rank. In bf16 the error is at most twice that of one rank in bf16, for this
// tensor or in proportion for all. If a tensor has few elements (norms of q and k have 4), eight times is allowed: the
// ratio of two such errors, an F distribution, is above two in one case of ten.
void expect_gradients(const Case& c) {
  const Layout layout = layout_of(c);
  const Words flags = model_of(c) + chunks(c[kChunks]) + steps(1);
  const RunResult& want = run_once(flags, 1);
  const Words narrow_flags = flags + dtype(c[kDtype]);
  const RunResult& narrow = run_once(narrow_flags, 1);
  const RunResult got = train(flags + dtype(c[kDtype]) + recompute(c[kRecompute]), layout);
  EXPECT_EQ(got.gradients.size(), want.gradients.size());
  const double of_all = norm_of_all(narrow.gradients, &want.gradients) / norm_of_all(want.gradients);
  for (const auto& [name, gradient] : want.gradients) {
    ASSERT_TRUE(got.gradients.contains(name)) << name;
    EXPECT_GT(norm(gradient), 0) << name;
    const double error = norm_of_difference(got.gradients.at(name), gradient);
    const double fp32 = is_zero(c, name) ? 1e-8 : 5e-6 * norm(gradient);
    const double bf16 = (gradient.size() < 64 ? 8 : 2) *
                        std::max(norm_of_difference(narrow.gradients.at(name), gradient), of_all * norm(gradient));
    EXPECT_LE(error, c[kDtype] == 0 ? fp32 : bf16) << name;
  }
}

// Both launch more ops on the rank that has the last layer and the loss.
void expect_recompute_and_chunks(const Case& c) {
  const Layout layout = layout_of(c);
  const auto ops = [&](const Words& more) {
    const Words flags = tiny_flags() + model_of(c) + dtype(c[kDtype]) + layout.flags() + more;
    return prepare_run(parse_flags(App::kTrain, flags).options, layout.is_v() ? 0 : layout.ranks() - 1, layout.ranks())
        .plans.train_ops;
  };
  const std::size_t plain = ops({});
  if (c[kRecompute] != 0) {
    EXPECT_GT(ops(recompute(c[kRecompute])), plain);
  }
  if (c[kChunks] != 0) {
    EXPECT_GT(ops(chunks(c[kChunks])), plain);
  }
}

void expect_losses(const Case& c, std::int64_t count) {
  const Layout layout = layout_of(c);
  const Words flags = model_of(c) + dtype(c[kDtype]) + chunks(c[kChunks]) + steps(count);
  const RunResult& want = run_once(flags, 1);
  Layout plain = layout;
  plain.schedule = "1f1b";
  const Words plain_flags = flags + plain.flags();
  const RunResult& same = run_once(plain_flags, layout.ranks());
  const RunResult got = train(flags + recompute(c[kRecompute]), layout);
  expect_same_state(got, same);
  EXPECT_TRUE(got.whole_state == same.whole_state);
  EXPECT_EQ(want.loss_values.size(), static_cast<std::size_t>(count));
  expect_losses_near(got, want, c[kDtype] == 0 ? 1e-5 : 1e-3);
  if (c[kDtype] == 1) {  // if a gradient is close to 0, Adam's step has the sign of its rounding
    EXPECT_LE(norm_of_all(got.weights, &want.weights), 1e-2 * norm_of_all(want.weights));
  }
  for (const auto& [name, weights] : want.weights) {
    if (c[kDtype] == 1 || is_zero(c, name)) continue;
    EXPECT_LE(norm_of_difference(got.weights.at(name), weights), 1e-4 * norm(weights)) << name;
  }
  expect_recompute_and_chunks(c);
  expect_acted(got, layout, sizes_of(layout), {.steps = count}, c[kDtype] == 0 ? 4 : 2);
}

class Layouts : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Models, Layouts, testing::Values(0, 1, 2),
                         [](const auto& family) { return families()[static_cast<std::size_t>(family.param)].name; });

TEST_P(Layouts, TrainTheModelOfOneRank) {
  const std::vector<Case> all = all_cases(), chosen = chosen_of(all);
  EXPECT_GE(chosen.size(), 18u);
  EXPECT_LE(chosen.size(), 40u);
  const char* const asked = std::getenv("MEGALITH_ALL_LAYOUTS");
  const std::vector<Case>& cases = asked != nullptr ? all : chosen;
  const auto step = static_cast<std::size_t>(asked != nullptr ? std::max(1, std::atoi(asked)) : one_of(3));
  for (std::size_t i = 0; i < cases.size(); i += step) {
    const Case& c = cases[i];
    if (c[kFamily] != GetParam()) continue;
    SCOPED_TRACE(layout_of(c).name() +
                 testing::PrintToString(dtype(c[kDtype]) + recompute(c[kRecompute]) + chunks(c[kChunks])));
    expect_gradients(c);
    expect_losses(c, i / step % 8 == 0 ? kLong : kShort);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::test
