// Complete runs with captured graphs: events between steps, failures and drift.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "apps/config/logging_options.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// In a hook of the embedding, outside graphs: in step 41 and its rerun.
const Poison kStep41{.calls = {82, 86}};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// 200 steps with a skipped one, evaluations, a trace and asynchronous saves, ended in the middle and resumed.
TEST(GraphedRun, TwoHundredStepsWithEverythingBetweenThem) {
  const TestFolder scratch;
  const Words flags{"--num-layers",       "2", "--train-iters",    "200", "--eval-interval",   "5",
                    "--eval-iters",       "1", "--hidden-dropout", "0.1", "--lr-warmup-iters", "20",
                    "--micro-batch-size", "4"};
  const Words saves{"--save",  scratch.path("kept"),       "--save-interval",      "50", "--async-save",
                    "--trace", scratch.path("trace.json"), "--profile-step-start", "70", "--profile-step-end",
                    "73"};
  // Two microbatches a step; step 42 is begun, dropped and begun again.
  const RunResult eager = train({.flags = flags, .prepare = poison(kStep41)});
  EXPECT_EQ(eager.skipped_steps, 1);
  GraphedRunner::Stats stats;
  std::map<Phase, int> phases;  // forwards of the first attention
  const RunResult first =
      train({.flags = flags + kGraphs + saves + Words{"--exit-interval", "120"},
             .customize =
                 [&](Rank& rank) {
                   rank.runner.hooks(1).add(HookPoint::kPreForward, [&](const HookContext& c) { ++phases[c.phase]; });
                 },
             .prepare = poison(kStep41),
             .finish = [&](Trainer& t, int) { stats = t.rank().graphs->stats(); }});
  EXPECT_EQ(first.code, ExitCode::kStoppedOnRequest);
  EXPECT_EQ(first.skipped_steps, 1);
  EXPECT_GT(stats.graphs, 0);
  EXPECT_GT(stats.replays, 2 * 2 * 110);
  const RunResult second =
      train({.flags = flags + kGraphs + Words{"--save", scratch.path("kept"), "--load", scratch.path("kept")}});
  EXPECT_EQ(joined(first.losses, second.losses), eager.losses);
  EXPECT_EQ(joined(first.grad_norms, second.grad_norms), eager.grad_norms);
  EXPECT_EQ(joined(first.validation_losses, second.validation_losses), eager.validation_losses);
  // Two microbatches of each step and evaluation, in one column. Eager: evaluations, three steps under the trace and
  // the one that is searched for the NaN; the step after that one is replayed twice.
  EXPECT_THAT(phases, testing::UnorderedElementsAre(std::pair(Phase::kWarmUp, 2), std::pair(Phase::kCapture, 1),
                                                    std::pair(Phase::kReplay, 2 * (120 - 1 - 3 + 1) - 1),
                                                    std::pair(Phase::kEager, 2 * (24 + 3 + 1))));
  EXPECT_TRUE(second.weights == eager.weights);
  std::stringstream trace;
  trace << std::ifstream(scratch.path("trace.json")).rdbuf();
  EXPECT_THAT(trace.str(), AllOf(HasSubstr("layer_norm"), testing::Not(HasSubstr("replay "))));
}

// Runs single steps on a trainer ahead of its run.
class ByHand {
 public:
  explicit ByHand(Trainer& trainer)
      : step_(trainer.step()), tokens_(static_cast<std::size_t>(trainer.rank().config.step_sequences() * 17), 3) {
    input_ = {.rates = {.main = 1e-3f}, .first_samples = std::vector<std::int64_t>(2), .tokens = tokens_};
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<std::int32_t>(i * 7 % 250);
  }
  float step() {
    ++input_.iteration;
    step_.train(input_);
    return step_.read_result().loss;
  }
  std::string failing_step() {
    try {
      step();
    } catch (const Error& error) {
      --input_.iteration;
      return error.what();
    }
    return "no error";
  }
  // Replaces `held` by `other` for one step.
  template <class T>
  void expect_refused(const std::string& what, T& held, T other) {
    SCOPED_TRACE(what);
    std::swap(held, other);
    EXPECT_THAT(failing_step(), HasSubstr("an address of memory, parameters or gradients has changed"));
    std::swap(held, other);
    EXPECT_GT(step(), 0);
  }
  void expect_tensor_refused(const std::string& what, MemoryPool& pool, Tensor& held) {
    expect_refused(what, held,
                   Tensor(pool.allocate(held.bytes(), MemoryCategory::kParameters, "another"), held.dtype, held.shape));
  }
  StepInput& input() { return input_; }

 private:
  Step& step_;
  std::vector<std::int32_t> tokens_;
  StepInput input_;
};

// Rank 0's.
std::vector<float> losses_by_hand(const Words& flags, const std::function<void(Trainer&, ByHand&)>& meanwhile = {},
                                  int ranks = 1) {
  std::vector<float> losses;
  train({.flags = flags + Words{"--train-iters", "1", "--micro-batch-size", "4"},
         .ranks = ranks,
         .prepare = [&](Trainer& trainer, int rank) {
           ByHand by_hand(trainer);
           std::vector<float> own{by_hand.step()};
           if (meanwhile) meanwhile(trainer, by_hand);
           for (int i = 0; i < 3; ++i) own.push_back(by_hand.step());
           if (rank == 0) losses = own;
         }});
  return losses;
}

TEST(GraphedRun, WarmUpThatLeavesNoStepIsReported) {
  testing::internal::CaptureStderr();
  train({.flags = {"--train-iters", "2", "--cuda-graph-impl", "local", "--cuda-graph-warmup-steps", "2"}});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("graphs: none was captured, as no step followed --cuda-graph-warmup-steps 2"));
}

// Logged once, after the step that captures. The CPU's graphs use no memory.
TEST(GraphedRun, LogAndMetricsReportWhatGraphsTook) {
  GraphedRunner::Stats stats;
  StepGraphs planned;
  std::string metrics;
  const auto log_of = [&](const Words& flags) {
    testing::internal::CaptureStderr();
    train(
        {.flags = Words{"--train-iters", "5", "--micro-batch-size", "4"} + flags, .finish = [&](Trainer& trainer, int) {
           const Rank& rank = trainer.rank();
           if (rank.graphs) stats = rank.graphs->stats();
           planned = trainer.plans().graphs;
           std::stringstream text;
           text << std::ifstream(rank.options.logging.metrics_jsonl).rdbuf();
           metrics = text.str();
         }});
    std::string text = testing::internal::GetCapturedStderr();
    const std::size_t at = text.find("memory (MiB)");
    EXPECT_NE(at, std::string::npos);
    EXPECT_EQ(text.find("memory (MiB)", at + 1), std::string::npos);
    return text;
  };
  EXPECT_THAT(log_of({}), testing::Not(HasSubstr("graphs |")));
  EXPECT_THAT(metrics, AllOf(HasSubstr("\"step temporaries\""), testing::Not(HasSubstr("\"graphs\""))));
  const std::string text = log_of(kGraphsOfAttentionAndMlp + Words{"--cuda-graph-warmup-steps", "2"});
  const std::string line = fmt::format(
      "graphs | captured: {} of {} ops, {} nodes | memory: 0.00 MiB | capture: ", stats.graphs, stats.ops, stats.nodes);
  EXPECT_GT(stats.graphs, 0);
  EXPECT_EQ(planned.nodes, stats.nodes);
  EXPECT_THAT(text, HasSubstr(line));
  EXPECT_LT(text.find(line), text.find("memory (MiB)"));
  EXPECT_EQ(text.find("graphs |", text.find(line) + 1), std::string::npos);
  EXPECT_THAT(metrics, HasSubstr("\"graphs\": 0}"));
  EXPECT_THAT(log_of(kGraphs + Words{"--cuda-graph-warmup-steps", "5"}), testing::Not(HasSubstr("graphs |")));
}

TEST(GraphedRun, AFailureWhileCapturingChangesNoBits) {
  const std::vector<float> eager = losses_by_hand({});
  for (const HookPoint point : {HookPoint::kPreForward, HookPoint::kPostBackward, HookPoint::kPostWeight}) {
    SCOPED_TRACE(name_of(point));
    const std::vector<float> graphs = losses_by_hand(kGraphsOfAttentionAndMlp, [point](Trainer& trainer,
                                                                                       ByHand& by_hand) {
      const auto throws = std::make_shared<bool>(true);  // the hook lives as long as the rank
      trainer.rank().runner.hooks(2).add(point, [throws](const HookContext& c) {
        if (c.phase == Phase::kCapture && std::exchange(*throws, false)) throw std::runtime_error("peer lost");
      });
      EXPECT_THAT(by_hand.failing_step(),
                  HasSubstr(fmt::format("hook {} of segment layer 0 mlp (microbatch 0): peer lost", name_of(point))));
      EXPECT_FALSE(*throws);
      *throws = false;
      EXPECT_FALSE(trainer.rank().streams.compute.capturing());
    });
    EXPECT_EQ(graphs, eager);
  }
}

// On a GPU a capture may wait for a receive that was posted, whose sender waits for this stage.
TEST(GraphedRun, APipelineCapturesBeforeItsFirstMessage) {
  struct Seen {
    std::map<Phase, int> calls;
    std::set<std::int64_t> messages_ahead;  // so far, at calls ahead
    std::int64_t messages = 0;              // for two steps
    int graphs = 0;
  };
  std::array<Seen, 2> of_ranks;
  const auto messages_of = [](Trainer& trainer) {
    const PipelineTransfer::Stats& stats = trainer.rank().transfer.stats();
    return stats.sent + stats.received;
  };
  const auto watch = [&](Trainer& trainer, int rank) {
    Seen& seen = of_ranks.at(static_cast<std::size_t>(rank));
    SegmentRunner& runner = trainer.rank().runner;
    for (int s = 0; s < runner.num_segments(); ++s) {
      runner.hooks(s).add(HookPoint::kPreForward, [&](const HookContext& c) {
        ++seen.calls[c.phase];
        EXPECT_TRUE(c.phase != Phase::kReplay || trainer.rank().graphs->complete());
        if (c.phase != Phase::kCaptureAhead) return;
        EXPECT_FALSE(trainer.rank().graphs->complete());
        seen.messages_ahead.insert(messages_of(trainer));
      });
    }
  };
  train({.flags = words("--train-iters 2 --num-layers 4 --pipeline-model-parallel-size 2 "
                        "--pipeline-schedule zb-v") +
                  kGraphsOfAttentionAndMlp,
         .ranks = 2,
         .prepare = watch,
         .finish = [&](Trainer& trainer, int rank) {
           Seen& seen = of_ranks.at(static_cast<std::size_t>(rank));
           seen.messages = messages_of(trainer);
           seen.graphs = trainer.rank().graphs->stats().graphs;
         }});
  for (Seen& seen : of_ranks) {
    EXPECT_GT(seen.graphs, 0);
    EXPECT_GT(seen.messages, 0);
    EXPECT_EQ(seen.messages_ahead, (std::set<std::int64_t>{seen.messages / 2}));  // messages of the preceding step
    EXPECT_GT(seen.calls[Phase::kReplay], 0);
    EXPECT_EQ(seen.calls[Phase::kCapture], 0);
    EXPECT_EQ(seen.calls[Phase::kCaptureAhead], seen.calls[Phase::kWarmUp]);
    EXPECT_EQ(seen.calls[Phase::kReplay] + seen.calls[Phase::kEager], seen.calls[Phase::kWarmUp]);
  }
}

// On both stages an MLP outside graphs fails in that pass, after a captured attention.
TEST(GraphedRun, AFailureOutsideGraphsWhileCapturingAheadChangesNoBits) {
  const Words pipeline = stages(2);
  const auto fail_once = [](Trainer& trainer, ByHand& by_hand) {
    Rank& rank = trainer.rank();
    Parameter* broken = nullptr;
    for (ParameterUnit& unit : rank.model.gpt.parameters->units()) {
      for (Parameter* parameter : unit.parameters) {
        if (parameter->name().ends_with("mlp.linear_fc2.weight")) broken = parameter;
      }
    }
    ASSERT_NE(broken, nullptr);
    const Tensor weight = std::exchange(broken->weight, Tensor{});
    EXPECT_THAT(
        by_hand.failing_step(),
        AllOf(HasSubstr(fmt::format("capture of work outside of graphs, in segment layer {} mlp, forward after op ",
                                    rank.stage())),
              HasSubstr("all graphs were dropped")));
    broken->weight = weight;
    EXPECT_EQ(rank.graphs->stats().graphs, 0);
    EXPECT_FALSE(rank.streams.compute.capturing());
    by_hand.step();
    EXPECT_TRUE(rank.graphs->complete());
  };
  const auto eager = [](Trainer&, ByHand& by_hand) { by_hand.step(); };
  EXPECT_EQ(losses_by_hand(pipeline + kGraphs + Words{"--cuda-graph-modules", "attn"}, fail_once, 2),
            losses_by_hand(pipeline, eager, 2));
}

// All layers are fully recomputed, and graphs of attention skip such layers. Stages run the pass ahead of the first
// message with nothing to capture.
TEST(GraphedRun, APipelineWithoutAnythingToCaptureRunsOn) {
  const Words flags{
      "--num-layers",       "2",     "--pipeline-model-parallel-size", "2", "--recompute-granularity", "full",
      "--recompute-method", "block", "--recompute-num-layers",         "1"};
  std::array<int, 2> graphs{-1, -1};
  const RunResult graphed = train({.flags = flags + kGraphs + Words{"--cuda-graph-modules", "attn"},
                                   .ranks = 2,
                                   .finish = [&](Trainer& trainer, int rank) {
                                     graphs.at(static_cast<std::size_t>(rank)) = trainer.rank().graphs->stats().graphs;
                                   }});
  EXPECT_EQ(graphs, (std::array<int, 2>{0, 0}));
  expect_same_run(graphed, train({.flags = flags, .ranks = 2}));
}

TEST(GraphedRun, AHookThatIsAddedAfterTheCaptureIsRefused) {
  losses_by_hand(kGraphsOfAttentionAndMlp, [](Trainer& trainer, ByHand& by_hand) {
    by_hand.step();
    EXPECT_GT(trainer.rank().graphs->stats().graphs, 0);
    trainer.rank().runner.hooks(2).add(HookPoint::kPreForward, [](const HookContext&) {});
    EXPECT_THAT(by_hand.failing_step(), HasSubstr("the number of hooks has changed"));
    trainer.rank().graphs->drop();
    trainer.rank().runner.hooks(2) = {};
  });
}

// Each object that graphs hold by address is replaced for one step by another one of equal size.
TEST(GraphedRun, ExchangedMemoryIsRefused) {
  const auto exchange = [](Trainer& trainer, int) {
    Rank& rank = trainer.rank();
    MemoryPool& pool = rank.memory.pool;
    ByHand by_hand(trainer);
    for (int i = 0; i < 2; ++i) by_hand.step();
    EXPECT_GT(rank.graphs->stats().graphs, 0);
    for (ParameterUnit& unit : rank.model.gpt.parameters->units()) {
      by_hand.expect_tensor_refused(unit.name + " weights", pool, unit.weight_shard);
      by_hand.expect_tensor_refused(unit.name + " gradients", pool, unit.grad_shard);
    }
    StepMemory& memory = rank.step;
    by_hand.expect_tensor_refused("sums", pool, memory.sums);
    by_hand.expect_tensor_refused("rows of experts", pool, memory.expert_counts);
    by_hand.expect_tensor_refused("rows of a loss", pool, memory.balance_counts);
    by_hand.expect_tensor_refused("room", pool, memory.room_needed);
    by_hand.expect_tensor_refused("rows sent", pool, memory.rows_sent);
    StepParameters parameters = *memory.parameters;
    by_hand.expect_refused("parameters", memory.parameters, &parameters);
    ReplicaGroups& group = rank.groups;
    const UnitStreams streams{
        .compute = rank.streams.compute, .gather = *rank.streams.unshard, .reduce = rank.streams.communication};
    by_hand.expect_refused(
        "slots", rank.units.sharded,
        std::make_unique<ShardedUnits>(*rank.model.gpt.parameters, rank.units.points.slots,
                                       std::vector<UnitGroups>{{.gather = group.shards(), .reduce = group.shards()}},
                                       streams, pool, 0, false));
  };
  train({.flags = llama_flags() + kGraphs +
                  words("--train-iters 1 --micro-batch-size 2 --ffn-hidden-size 32 --num-experts 4 "
                        "--moe-router-topk 2 --moe-aux-loss-coeff 0.1 --expert-model-parallel-size 2 "
                        "--data-parallel-sharding-strategy optim_grads_params"),
         .ranks = 2,
         .prepare = exchange});
}

// Graphs read tensors outside of slots at each parameter's own address.
TEST(GraphedRun, ExchangedParametersAreRefused) {
  losses_by_hand(kGraphs, [](Trainer& trainer, ByHand& by_hand) {
    by_hand.step();
    Rank& rank = trainer.rank();
    EXPECT_GT(rank.graphs->stats().graphs, 0);
    for (ParameterUnit& unit : rank.model.gpt.parameters->units()) {
      for (Parameter* parameter : unit.parameters) {
        by_hand.expect_tensor_refused(parameter->name(), rank.memory.pool, parameter->weight);
        by_hand.expect_tensor_refused(parameter->name() + ", gradient", rank.memory.pool, parameter->main_grad);
      }
    }
  });
}

TEST(GraphedRun, AnotherPlanOrNumberOfMicrobatchesIsRefused) {
  losses_by_hand(kGraphs, [](Trainer& trainer, ByHand& by_hand) {
    by_hand.step();
    EXPECT_GT(trainer.rank().graphs->stats().graphs, 0);
    const auto samples = by_hand.input().first_samples;
    const auto tokens = by_hand.input().tokens;
    by_hand.input().first_samples.pop_back();
    by_hand.input().tokens = tokens.first(tokens.size() / 2);
    EXPECT_THAT(by_hand.failing_step(), HasSubstr("the number of microbatches has changed"));
    by_hand.input().first_samples = samples;
    by_hand.input().tokens = tokens;
    EXPECT_GT(by_hand.step(), 0);
    StepPlans another = trainer.plans();
    another.train.slots.begin()->second.bytes += 256;
    trainer.step().use(another);
    EXPECT_THAT(by_hand.failing_step(), HasSubstr("the memory plan has changed"));
    trainer.step().use(trainer.plans());
    EXPECT_GT(by_hand.step(), 0);
  });
}

TEST(GraphedRun, AHookInsideALayerIsRefused) {
  losses_by_hand(kGraphs, [](Trainer& trainer, ByHand& by_hand) {
    trainer.rank().runner.hooks(1).add(HookPoint::kPostForward, [](const HookContext&) {});
    EXPECT_THAT(by_hand.failing_step(), HasSubstr("hook post_forward of segment layer 0 attention"));
    trainer.rank().runner.hooks(1) = {};
  });
}

}  // namespace
}  // namespace megalith::test
