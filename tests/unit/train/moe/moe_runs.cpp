#include "tests/unit/train/moe/moe_runs.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "core/device/copy.h"
#include "tests/support/download.h"

namespace megalith::test {

MoeResult train_experts(const Words& flags, const Layout& layout) {
  MoeResult result;
  result.sums.resize(static_cast<std::size_t>(layout.ranks()));
  result.counts.resize(result.sums.size());
  result.capacity_factors.resize(result.sums.size());
  std::mutex mutex;
  const auto finish = [&](Trainer& trainer, int index) {
    Rank& rank = trainer.rank();
    std::vector<float> sums = download(rank.streams.compute, rank.step.sums);
    std::vector<std::int32_t> counts(static_cast<std::size_t>(rank.step.expert_counts.numel()));
    copy_to_host(rank.streams.compute, counts.data(), rank.step.expert_counts.data, rank.step.expert_counts.bytes());
    rank.streams.compute.synchronize();
    const std::lock_guard lock(mutex);
    result.rows = 2 * rank.config.step_tokens();
    result.sums[static_cast<std::size_t>(index)] = std::move(sums);
    result.counts[static_cast<std::size_t>(index)] = std::move(counts);
    result.capacity_factors[static_cast<std::size_t>(index)] = trainer.plans().capacity_factor;
    if (index == 0 && rank.layers.dispatcher)
      result.exchanges = rank.layers.dispatcher->communicator().stats().messages;
    if (index == 0 && rank.graphs) {
      result.graphs = rank.graphs->stats().graphs;
      result.replays = rank.graphs->stats().replays;
    }
    for (const ParameterBuffer& buffer : rank.model.gpt.parameters->buffers()) {
      const std::vector<float> own = download(rank.streams.compute, buffer.values);
      std::vector<float>& bias = result.biases.try_emplace(buffer.part.name, own).first->second;
      if (bias != own) bias.assign(own.size(), std::nanf(""));
    }
  };
  result.run = train({.flags = flags + layout.flags(), .ranks = layout.ranks(), .finish = finish});
  return result;
}

void expect_same_bits(const MoeResult& run, const MoeResult& plain) {
  expect_same_run(run.run, plain.run);
  EXPECT_EQ(run.sums, plain.sums);
  EXPECT_EQ(run.counts, plain.counts);
  EXPECT_EQ(run.biases, plain.biases);
  EXPECT_TRUE(run.run.memory_as_planned);
  EXPECT_EQ(run.run.hazards, 0);
}

}  // namespace megalith::test
