#include "tests/unit/train/layouts.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <string_view>

#include "apps/train/numerics_guard.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith::test {

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"gpt2", {}, "linear_k.bias"},
      {"llama", llama_flags() + Words{"--ffn-hidden-size", "32"}},
      {"qwen2",
       {"--swiglu", "--ffn-hidden-size", "32", "--normalization", "RMSNorm", "--position-embedding-type", "rope",
        "--disable-bias-linear", "--add-qkv-bias", "--group-query-attention"}}};
  return all;
}

const Words& schedules() {
  static const Words all = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};
  return all;
}

namespace {

struct SharingRow {
  std::string_view name;
  std::string_view flags;
};
// In the order of Sharing.
constexpr std::array<SharingRow, kNumSharings> kSharings = {{
    {" ", ""},
    {" overlapped ", "--overlap-grad-reduce"},
    {" sharded ", "--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather"},
    {" units ", "--overlap-grad-reduce --data-parallel-sharding-strategy optim_grads_params --overlap-param-gather"},
    {" units summed last ",
     "--overlap-grad-reduce --data-parallel-sharding-strategy optim_grads_params --overlap-param-gather "
     "--fsdp-reduce-grads last"},
    {" gradients ", "--overlap-grad-reduce --data-parallel-sharding-strategy optim_grads"},
    {" units of two instances ",
     "--overlap-grad-reduce --data-parallel-sharding-strategy optim_grads_params --overlap-param-gather "
     "--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim"},
    {" experts' units ",
     "--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather "
     "--expert-data-parallel-sharding-strategy optim_grads_params --fsdp-reduce-grads last"},
}};
const SharingRow& row_of(Sharing sharing) { return kSharings.at(static_cast<std::size_t>(sharing)); }

}  // namespace

int Layout::chunks() const { return is_v() || schedule == "interleaved" ? 2 : 1; }

bool Layout::gathers_units() const {
  const bool replicates_experts = tensor * data * context > expert * expert_tensor;
  return sharing == Sharing::kUnits || sharing == Sharing::kUnitsSummedLast ||
         sharing == Sharing::kUnitsOfTwoInstances || (sharing == Sharing::kExpertUnits && replicates_experts);
}

bool Layout::sums_each_microbatch() const {
  return sharing == Sharing::kUnits || sharing == Sharing::kGradients || sharing == Sharing::kUnitsOfTwoInstances;
}

Words Layout::flags() const {
  Words flags = {"--tensor-model-parallel-size",
                 std::to_string(tensor),
                 "--pipeline-model-parallel-size",
                 std::to_string(pipeline),
                 "--pipeline-schedule",
                 schedule,
                 "--ddp-bucket-size",
                 "1000"};
  if (sequence) flags = flags + Words{"--sequence-parallel"};
  if (context > 1)
    flags = flags + Words{"--context-parallel-size", std::to_string(context), "--cp-comm-type", communication};
  if (expert > 1) flags = flags + Words{"--expert-model-parallel-size", std::to_string(expert)};
  if (expert_tensor > 1) flags = flags + Words{"--expert-tensor-parallel-size", std::to_string(expert_tensor)};
  if (overlap) flags = flags + Words{"--tp-comm-overlap"};
  flags = flags + words(std::string(row_of(sharing).flags));
  if (schedule == "interleaved") flags = flags + Words{"--num-virtual-stages-per-pipeline-rank", "2"};
  return flags;
}

std::string Layout::name() const {
  return "tp" + std::to_string(tensor) +
         (overlap    ? " overlapped sp"
          : sequence ? " sp"
                     : "") +
         " pp" + std::to_string(pipeline) + " dp" + std::to_string(data) +
         (context > 1 ? " cp" + std::to_string(context) + " " + communication : "") +
         (expert > 1 ? " ep" + std::to_string(expert) : "") +
         (expert_tensor > 1 ? " etp" + std::to_string(expert_tensor) : "") + std::string(row_of(sharing).name) +
         schedule;
}

RunResult train(const Words& flags, const Layout& layout) {
  return train({.flags = flags + layout.flags(), .ranks = layout.ranks()});
}

Way way_of(const Layout& layout) { return {layout.name(), layout.flags(), layout.ranks()}; }
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
RunResult train(const Words& flags, const Way& way) { return train({.flags = flags + way.flags, .ranks = way.ranks}); }

std::function<void(Trainer&, int)> poison(const Poison& what) {
  return [what](Trainer& trainer, int rank) {
    if (rank != what.rank) return;
    Rank& own = trainer.rank();
    own.runner.hooks(what.segment).add(HookPoint::kPostWeight, [&own, what, call = 0](const HookContext&) mutable {
      if (!what.calls.contains(++call)) return;
      const std::vector<ParameterUnit>& units = own.model.gpt.parameters->units();
      const ParameterUnit& unit = what.unit < 0 ? units.back() : units.at(static_cast<std::size_t>(what.unit));
      launch(own.streams.compute, Fill{.x = unit.main_grads.slice(0, what.element, 1), .value = what.value});
    });
  };
}

std::function<void(Trainer&, int)> poison_weights(int of_rank) {
  return [of_rank](Trainer& trainer, int rank) {
    if (rank != of_rank) return;
    Rank& own = trainer.rank();
    for (const ParameterUnit& unit : own.model.gpt.parameters->units())
      launch(own.streams.compute, Fill{.x = unit.weights.slice(0, 0, 1), .value = std::nan("")});
    own.streams.compute.synchronize();
  };
}

void expect_second_step_skipped(const RunResult& poisoned, const RunResult& clean) {
  EXPECT_EQ(poisoned.skipped_steps, 1);
  ASSERT_GT(poisoned.losses.size(), 2u);
  EXPECT_EQ(poisoned.grad_norms[1], "nan");
  EXPECT_EQ(poisoned.losses[0], clean.losses[0]);
  EXPECT_EQ(poisoned.losses[1], clean.losses[1]);
  EXPECT_NE(poisoned.losses[2], clean.losses[2]);
  EXPECT_FALSE(poisoned.whole_state.empty());
  for (const auto& [name, values] : poisoned.whole_state)
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
}

std::map<int, std::string> warned_replicas(const Words& flags, const Way& way,
                                           const std::function<void(Rank&, int)>& damage) {
  std::mutex mutex;
  std::map<int, std::string> reported;
  const auto compare = [&](Trainer& trainer, int index) {
    const auto before = replica_difference(trainer.rank());
    damage(trainer.rank(), index);
    const auto difference = replica_difference(trainer.rank());
    const std::lock_guard lock(mutex);
    EXPECT_FALSE(before) << "rank " << index;
    if (difference) reported[index] = difference->message;
  };
  train({.flags = flags + way.flags + Words{"--train-iters", "1"}, .ranks = way.ranks, .finish = compare});
  return reported;
}

Sizes sizes_of(const Layout& layout) {
  const bool deep = layout.pipeline == 4;  // two chunks a stage, and eight microbatches for dualpipe-v
  return {.layers = deep ? 8 : 4, .global_batch = deep ? 8 * layout.data : 8};
}

Words sizes_for(const Layout& layout) {
  const Sizes sizes = sizes_of(layout);
  return {"--num-layers",        std::to_string(sizes.layers),      "--hidden-size",      std::to_string(sizes.hidden),
          "--seq-length",        std::to_string(sizes.seq_length),  "--micro-batch-size", "1",
          "--global-batch-size", std::to_string(sizes.global_batch)};
}

void expect_acted(const RunResult& run, const Layout& layout, const Sizes& sizes, const StepCounts& counts,
                  std::int64_t bytes_per_element) {
  const std::int64_t steps = counts.steps;
  ASSERT_EQ(run.ranks.size(), static_cast<std::size_t>(layout.ranks()));
  const std::int64_t microbatches = sizes.global_batch / layout.data;
  const std::int64_t bytes =
      sizes.seq_length * sizes.hidden * bytes_per_element / (layout.sequence ? layout.tensor : 1) / layout.context;
  PipelineTransfer::Stats all;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const RankActivity& did = run.ranks[rank];
    // Two sums forward and two backward in each layer.
    const std::int64_t calls = 4 * steps * microbatches * sizes.layers / layout.pipeline;
    EXPECT_GE(did.tensor_calls, layout.tensor > 1 ? calls : 0);
    // At least one exchange in each direction.
    EXPECT_GE(did.context_calls, layout.context > 1 ? 2 * steps * microbatches * sizes.layers / layout.pipeline : 0);
    const bool has_replicas = layout.data * layout.context > 1;
    if (layout.sharing <= Sharing::kOptimizer) {
      const bool shards = layout.sharing == Sharing::kOptimizer;
      EXPECT_GE(did.buckets_reduced, has_replicas ? (layout.sharing > Sharing::kNone ? 2 : 1) * steps : 0);
      EXPECT_EQ(did.ranges_scattered > 0, shards);
      EXPECT_GE(did.buckets_gathered, shards ? 2 * steps : 0);
    }
    const bool each = layout.sums_each_microbatch();
    const std::int64_t units = steps * microbatches * sizes.layers / layout.pipeline;
    EXPECT_GE(did.units_reduced, each ? units : 0);
    EXPECT_EQ(did.units_reduced > 0, each);
    EXPECT_EQ(did.units_gathered > 0, layout.gathers_units());
    if (layout.tensor == 1) {
      EXPECT_EQ(did.tensor_calls, 0);
    }
    if (layout.context == 1) {
      EXPECT_EQ(did.context_calls, 0);
    }
    if (layout.data * layout.context == 1) {
      EXPECT_EQ(did.buckets_reduced, 0);
    }
    EXPECT_EQ(did.transfer.bytes_sent, did.transfer.sent * bytes);
    EXPECT_EQ(did.transfer.placed, did.transfer.sent);  // threads share memory for messages
    all.sent += did.transfer.sent;
    all.received += did.transfer.received;
    all.handed_over += did.transfer.handed_over;
  }
  // An output and a gradient cross each border between two parts; in an evaluation only outputs do. The middle of a V
  // is on one stage.
  const int borders = layout.pipeline * layout.chunks() - 1;
  const int within = layout.pipeline == 1 ? borders : layout.is_v() ? 1 : 0;
  const std::int64_t messages =
      (2 * steps + counts.evaluations) * microbatches * layout.tensor * layout.data * layout.context;
  EXPECT_EQ(all.sent, messages * (borders - within));
  EXPECT_EQ(all.received, all.sent);
  EXPECT_EQ(all.handed_over, messages * within);
  EXPECT_TRUE(run.memory_as_planned);
  EXPECT_TRUE(run.copies_agree);
  EXPECT_EQ(run.code, ExitCode::kOk);
}

}  // namespace megalith::test
