// The example of CONTRIBUTING.md in the model: LowRankLinear of the hidden size after each MLP. With A = B = I its
// output equals its input. The model then has the bits of the one without it, on one rank and on tensor-parallel thread
// ranks.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "core/device/copy.h"
#include "core/model/gpt.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "parallel/tensor_parallel/shared_gradients.h"
#include "tests/support/download.h"
#include "tests/support/error_of.h"
#include "tests/support/low_rank_linear.h"
#include "tests/support/matchers.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/model/model_families.h"

namespace megalith {
namespace {

constexpr std::int64_t kBatch = 2;

struct Layout {
  int tensor = 1;
  bool sequence = false;
};

// Results of one rank.
struct Step {
  float loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};

OwnSegmentFactory low_rank(const ModelConfig& config) {
  return [size = config.hidden_size](const OwnSite& site) {
    return std::make_unique<LowRankLinear>(
        site.store,
        LowRankLinear::Spec{
            .name = site.prefix + "own", .inputs = size, .rank = size, .outputs = size, .split = site.split()});
  };
}

bool is_own(const std::string& name) { return name.find(".own.") != std::string::npos; }

template <class Visit>
void for_each_part(const GptModel& gpt, Visit&& visit) {
  for (const ParameterUnit& unit : gpt.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) visit(*parameter, i);
    }
  }
}

void initialize(Stream& stream, const GptModel& gpt) {
  gpt.parameters->initialize(stream, 3);
  gpt.parameters->zero_gradients(stream);
  for_each_part(gpt, [&](const Parameter& parameter, std::size_t) {
    if (!is_own(parameter.name())) return;
    const std::int64_t n = parameter.shape[0];
    std::vector<float> identity(static_cast<std::size_t>(n * n));
    for (std::int64_t i = 0; i < n; ++i) identity[static_cast<std::size_t>(i * n + i)] = 1;
    upload(stream, identity, parameter.weight);
  });
}

Tensor integers(Stream& stream, MemoryPool& pool, std::int64_t count, std::int64_t below, std::int64_t step) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<std::int32_t>(i * i * step % below));
  const Tensor tensor(pool.allocate(values.size() * 4, MemoryCategory::kOther, "test"), DType::kInt32, {count});
  copy_from_host(stream, tensor.data, values.data(), tensor.bytes());
  stream.synchronize();
  return tensor;
}

Step step_of(Communicator& group, const ModelConfig& config, const Layout& layout, const RecomputeLayers& recompute,
             const OwnSegmentFactory& own) {
  MemoryPool pool(DeviceType::kCpu);
  Stream compute(DeviceType::kCpu, "compute"), communication(DeviceType::kCpu, "tensor communication");
  const AbortOnUnwind guard(group);
  TensorGroup tensor(group, communication, {.sequence_parallel = layout.sequence});
  const GptModel gpt = build_gpt(config, recompute, {.rows = &tensor, .own = own});
  gpt.parameters->allocate(pool, DType::kFp32);
  initialize(compute, gpt);
  SharedGradients shared(tensor, *gpt.parameters, pool);
  Arena arena(pool, Arena::Mode::kUnplanned);
  const std::int64_t tokens = kBatch * config.seq_length;
  const Context ctx{.compute = compute, .arena = arena};
  auto* const parameters =
      static_cast<MicrobatchParameters*>(pool.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "test"));
  launch(compute, WriteMicrobatchParameters{.value = {.loss_scale = 1.0f / static_cast<float>(tokens),
                                                      .router_scale = 1.0f / static_cast<float>(tokens)},
                                            .out = parameters});
  const Microbatch mb{.sequences = kBatch,
                      .seq_length = config.seq_length,
                      .tokens = integers(compute, pool, tokens, config.vocab_size, 3),
                      .labels = integers(compute, pool, tokens, config.vocab_size, 7),
                      .parameters = parameters,
                      .sums = ctx.empty({num_step_sums(0)}, DType::kFp32, "loss")};
  launch(compute, Fill{.x = mb.sums, .value = 0});

  TensorList hidden, gradients;
  std::vector<Stash> stashes(gpt.segments.size());
  for (std::size_t s = 0; s < stashes.size(); ++s)
    hidden = gpt.segments[s].segment->forward(ctx, mb, hidden, stashes[s]);
  for (std::size_t s = stashes.size(); s-- > 0;) {
    gradients = gpt.segments[s].segment->backward_data(ctx, mb, gradients, stashes[s]);
    gpt.segments[s].segment->backward_weight(ctx, mb, stashes[s]);
  }
  gpt.parameters->add_tied_gradients(compute);
  shared.sum(compute);
  compute.synchronize();
  Step step{.loss = download(compute, mb.sums)[0], .gradients = {}};
  for_each_part(gpt, [&](const Parameter& parameter, std::size_t i) {
    step.gradients[parameter.parts[i].name] = download(compute, parameter.part_of(parameter.main_grad, i));
  });
  return step;
}

std::vector<Step> run(const std::string& family, const Layout& layout, bool with_layer,
                      const RecomputeLayers& recompute = {}) {
  const ModelConfig config = test::family(family);
  std::vector<Step> steps(static_cast<std::size_t>(layout.tensor));
  ThreadWorld world(layout.tensor, std::chrono::seconds(60));
  world.run([&](Communicator& group) {
    steps[static_cast<std::size_t>(group.rank())] =
        step_of(group, config, layout, recompute, with_layer ? low_rank(config) : OwnSegmentFactory{});
  });
  return steps;
}

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got.at(i)) - static_cast<double>(want[i]), 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(difference / norm);
}

const Layout kLayouts[] = {{1, false}, {2, false}, {2, true}};

TEST(OwnLayer, WithGainOneKeepsEveryBitOfTheModel) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const Layout& layout : kLayouts) {
      for (const RecomputeLayers& recompute : {RecomputeLayers{}, RecomputeLayers{.ranges = {{0, 2}}}}) {
        SCOPED_TRACE(fmt::format("{} tp {} sp {} recompute {}", family, layout.tensor, layout.sequence,
                                 recompute.ranges.size()));
        const std::vector<Step> without = run(family, layout, false, recompute);
        const std::vector<Step> with = run(family, layout, true, recompute);
        for (std::size_t rank = 0; rank < with.size(); ++rank) {
          EXPECT_GT(without[rank].loss, 0);
          EXPECT_EQ(with[rank].loss, without[rank].loss);
          EXPECT_EQ(with[rank].gradients.size(), without[rank].gradients.size() + 4);  // A and B of two layers
          for (const auto& [name, gradient] : without[rank].gradients)
            EXPECT_EQ(with[rank].gradients.at(name), gradient) << name;
        }
      }
    }
  }
}

TEST(OwnLayer, ItsGradientIsThatOfOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    const Step one = run(family, kLayouts[0], true)[0];
    for (const Layout& layout : {kLayouts[1], kLayouts[2]}) {
      const std::vector<Step> ranks = run(family, layout, true);
      int compared = 0;
      for (const auto& [name, gradient] : one.gradients) {
        if (!is_own(name)) continue;
        ++compared;
        EXPECT_LT(relative_difference(ranks[0].gradients.at(name), gradient), 5e-6)
            << name << " sp " << layout.sequence;
        EXPECT_EQ(ranks[1].gradients.at(name), ranks[0].gradients.at(name)) << name;
      }
      EXPECT_EQ(compared, 4);
    }
  }
}

// Models a user who copies the layer without its split.
TEST(OwnLayer, AnUndeclaredSplitIsAnErrorUnderTensorParallelism) {
  const ModelConfig config = test::family("llama");
  const OwnSegmentFactory declared = low_rank(config);
  RowExchange one_rank;
  const OwnSegmentFactory undeclared = [&](const OwnSite& site) {
    return declared(
        {.store = site.store, .rows = one_rank, .config = config, .layer = site.layer, .prefix = site.prefix});
  };
  for (const Layout& layout : kLayouts) {
    const auto run_it = [&] {
      ThreadWorld world(layout.tensor, std::chrono::seconds(60));
      world.run([&](Communicator& group) { step_of(group, config, layout, {}, undeclared); });
    };
    if (layout.tensor == 1) {
      run_it();
      continue;
    }
    EXPECT_THAT(
        error_of(ExitCode::kInternal, run_it),
        HasSubstr("parameter decoder.layers.0.own.a: expected a declaration of what each of the 2 tensor-parallel "
                  "ranks holds, got none; declare it by TensorSplit"));
  }
}

// A user's segment that forwards only one of the two tensors.
class Forgetful : public Segment {
 public:
  explicit Forgetful(bool forward) : forward_(forward) {}
  TensorList forward(const Context&, const Microbatch&, const TensorList& inputs, Stash&) const override {
    return forward_ ? TensorList{inputs[0]} : inputs;
  }
  TensorList backward_data(const Context&, const Microbatch&, const TensorList& gradients, Stash&) const override {
    return {gradients[0]};
  }
  void backward_weight(const Context&, const Microbatch&, Stash&) const override {}

 private:
  bool forward_;
};

TEST(OwnLayer, ALostResidualIsAnError) {
  const ModelConfig config = test::family("llama");
  for (const bool forward : {true, false}) {
    const OwnSegmentFactory own = [&](const OwnSite&) { return std::make_unique<Forgetful>(forward); };
    const std::string error = error_of(ExitCode::kInternal, [&] {
      ThreadWorld world(1, std::chrono::seconds(60));
      world.run([&](Communicator& group) { step_of(group, config, {}, {}, own); });
    });
    EXPECT_THAT(error, HasSubstr("the segments of a model pass two, (hidden, residual)"));
  }
}

}  // namespace
}  // namespace megalith
