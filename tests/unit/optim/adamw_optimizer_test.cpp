// The optimizer over a store of parameters: its state and its launches. Its norm and update do not depend on the
// distribution of parameters over units.
#include "core/optim/adamw_optimizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/device/copy.h"
#include "core/instruments/timeline.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"
#include "tests/support/download.h"

namespace megalith {
namespace {

// Parameters of one store: 40 matrices and biases in `units` units.
struct Model {
  Model(DeviceType device, int units, DType dtype, DType gradients, const AdamWOptimizer::Spec& spec,
        Timeline* timeline = nullptr, const FlatShard& shard = {})
      : pool(device), stream(device, "test", {.timeline = timeline}) {
    for (int i = 0; i < 40; ++i) {
      if (i % (40 / units) == 0) store.begin_unit("unit");
      const bool bias = i % 2 == 1;
      parameters.push_back(&store.add({.parts = {{.name = fmt::format("p{}", i)}},
                                       .shape = bias ? Shape{7 + i} : Shape{11, 5 + i},
                                       .init_std = 0.5f,
                                       .decay = !bias}));
    }
    for (ParameterUnit& unit : store.units()) unit.shard = shard;
    store.allocate(pool, dtype, gradients);
    optimizer = std::make_unique<AdamWOptimizer>(store, pool, spec);
    loss = Tensor(pool.allocate(4, MemoryCategory::kOther, "loss"), DType::kFp32, {1});
    step = static_cast<StepParameters*>(pool.allocate(sizeof(StepParameters), MemoryCategory::kOther, "step"));
  }
  ~Model() { stream.synchronize(); }

  void start() {
    store.initialize(stream, 5);
    optimizer->initialize(stream);
    const StepParameters first{.learning_rate = 0.01f};
    copy_from_host(stream, step, &first, sizeof(first));
    launch(stream, Fill{.x = loss, .value = 2});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::vector<float> values(static_cast<std::size_t>(parameters[i]->shape.numel()));
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = std::sin(static_cast<float>(i + 3 * k));
      upload(stream, values, parameters[i]->main_grad);
    }
    stream.synchronize();
  }
  void update() {
    optimizer->squares().sum(stream);
    optimizer->squares().add_pieces(stream);
    optimizer->update(stream, loss, step);
  }
  std::vector<std::vector<float>> weights() {
    std::vector<std::vector<float>> all;
    for (const Parameter* parameter : parameters) all.push_back(download(stream, parameter->weight));
    return all;
  }

  std::vector<double> pieces() {
    stream.synchronize();
    const Tensor& all = optimizer->squares().pieces();
    return {all.as<const double>(), all.as<const double>() + all.numel()};
  }

  MemoryPool pool;
  Stream stream;
  ParameterStore store;
  std::vector<Parameter*> parameters;
  std::unique_ptr<AdamWOptimizer> optimizer;
  Tensor loss;
  StepParameters* step = nullptr;
};

TEST(AdamWOptimizer, AStepIsFourLaunchesForAnyNumberOfParameters) {
  for (const int units : {1, 20}) {
    Timeline timeline;
    Model model(DeviceType::kPlan, units, DType::kBf16, DType::kBf16, {}, &timeline);
    model.update();
    std::vector<std::string> names;
    for (const Timeline::Entry& entry : timeline.entries()) names.emplace_back(entry.access.name());
    EXPECT_EQ(names, (std::vector<std::string>{"sum_of_squares", "add_pieces", "grad_norm_finalize", "adamw"}));
  }
}

TEST(AdamWOptimizer, StateTakesTheBytesOfItsDtypes) {
  const auto category = [](const Model& model, MemoryCategory which) {
    return model.pool.allocated_by_category()[static_cast<std::size_t>(which)];
  };
  const Model wide(DeviceType::kCpu, 4, DType::kBf16, DType::kFp32, {});
  const Model half(DeviceType::kCpu, 4, DType::kBf16, DType::kBf16, {.exp_avg_dtype = DType::kBf16});
  const Model narrow(DeviceType::kCpu, 4, DType::kBf16, DType::kBf16,
                     {.exp_avg_dtype = DType::kBf16, .exp_avg_sq_dtype = DType::kBf16});
  EXPECT_EQ(category(half, MemoryCategory::kOptimizer) * 4, category(wide, MemoryCategory::kOptimizer) * 3);
  EXPECT_EQ(category(narrow, MemoryCategory::kOptimizer) * 2, category(wide, MemoryCategory::kOptimizer));
  EXPECT_EQ(category(narrow, MemoryCategory::kGradients) * 2, category(wide, MemoryCategory::kGradients));
  EXPECT_EQ(category(narrow, MemoryCategory::kMainParameters), category(wide, MemoryCategory::kMainParameters));
}

TEST(AdamWOptimizer, UnitsChangeNoBit) {
  for (const DType type : {DType::kFp32, DType::kBf16}) {
    const AdamWOptimizer::Spec spec{.weight_decay = 0.5, .exp_avg_dtype = type, .exp_avg_sq_dtype = type};
    std::vector<std::vector<float>> first;
    for (const int units : {1, 2, 20}) {
      Model model(DeviceType::kCpu, units, DType::kBf16, type, spec);
      model.start();
      const std::vector<std::vector<float>> before = model.weights();
      model.update();
      model.update();
      const std::vector<std::vector<float>> after = model.weights();
      if (first.empty()) first = after;
      EXPECT_EQ(after, first) << units;
      for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NE(after[i], before[i]) << i;
    }
  }
}

TEST(AdamWOptimizer, TheNormIsOfAllLogicalTensors) {
  Model model(DeviceType::kCpu, 4, DType::kBf16, DType::kBf16, {.clip_grad = 0.25});
  model.start();
  double squares = 0;
  for (const Parameter* parameter : model.parameters) {
    for (const float g : download(model.stream, parameter->main_grad)) squares += static_cast<double>(g) * g;
  }
  model.update();
  StepParameters result;
  copy_to_host(model.stream, &result, model.step, sizeof(result));
  model.stream.synchronize();
  EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
  EXPECT_NEAR(result.clip_factor, 0.25 / std::sqrt(squares), 1e-5 / std::sqrt(squares));
  EXPECT_EQ(result.adam_count, 1);
}

// Each rank of a distributed optimizer updates its shard like the unsharded optimizer, wherever shards cut parameters
// and ranges of decay. Each piece of a tensor has its sum of squares on one rank, with equal bits.
TEST(AdamWOptimizer, ShardsUpdateTheirPartOfTheWhole) {
  for (const DType type : {DType::kFp32, DType::kBf16}) {
    for (const int ranks : {1, 2, 3, 7}) {
      const AdamWOptimizer::Spec spec{.weight_decay = 0.5, .clip_grad = 0};
      Model whole(DeviceType::kCpu, 2, type, DType::kFp32, spec);
      whole.start();
      whole.update();
      whole.update();
      const std::vector<std::vector<float>> want = whole.weights();
      std::vector<std::vector<float>> got(want.size()), before;
      const std::vector<double> wanted_pieces = whole.pieces();
      EXPECT_GT(wanted_pieces.size(), want.size());
      std::vector<double> pieces(wanted_pieces.size(), 0.0);
      int holders = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const FlatShard shard{.rank = rank, .ranks = ranks};
        Model part(DeviceType::kCpu, 2, type, DType::kFp32, spec, nullptr, shard);
        part.start();
        before = part.weights();
        part.update();
        part.update();
        const std::vector<std::vector<float>> after = part.weights();
        const std::vector<double> held_pieces = part.pieces();
        ASSERT_EQ(held_pieces.size(), pieces.size());
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          ASSERT_TRUE(held_pieces[i] == 0 || pieces[i] == 0) << "piece of another rank";
          pieces[i] += held_pieces[i];
        }
        holders += std::any_of(held_pieces.begin(), held_pieces.end(), [](double piece) { return piece > 0; }) ? 1 : 0;
        for (std::size_t p = 0; p < after.size(); ++p) {
          const Parameter& parameter = *part.parameters[p];
          const ParameterUnit& unit = part.store.units()[static_cast<std::size_t>(parameter.unit)];
          const FlatShard::Range held =
              shard.clip({parameter.offset, parameter.offset + parameter.shape.numel()}, unit.numel);
          got[p].resize(after[p].size());
          for (std::size_t k = 0; k < after[p].size(); ++k) {
            const std::int64_t at = parameter.offset + static_cast<std::int64_t>(k);
            const bool own = held.begin <= at && at < held.end;
            if (own) got[p][k] = after[p][k];
            ASSERT_TRUE(own || after[p][k] == before[p][k]) << "element of another rank";
          }
        }
      }
      EXPECT_EQ(got, want) << ranks;
      EXPECT_EQ(pieces, wanted_pieces) << ranks;
      EXPECT_EQ(holders, ranks);
    }
  }
}

// Weight decay is the only thing that moves a weight without gradient: biases keep theirs.
TEST(AdamWOptimizer, DecaysMatricesAlone) {
  Model model(DeviceType::kCpu, 4, DType::kFp32, DType::kFp32, {.weight_decay = 0.5});
  model.start();
  model.store.zero_gradients(model.stream);
  const std::vector<std::vector<float>> before = model.weights();
  model.update();
  const std::vector<std::vector<float>> after = model.weights();
  for (std::size_t i = 0; i < after.size(); ++i) {
    for (std::size_t k = 0; k < after[i].size(); ++k) {
      const float want = i % 2 == 1 ? before[i][k] : before[i][k] * static_cast<float>(1 - 0.01 * 0.5);
      ASSERT_NEAR(after[i][k], want, 1e-6f * std::abs(want)) << i << ' ' << k;
    }
  }
}

}  // namespace
}  // namespace megalith
