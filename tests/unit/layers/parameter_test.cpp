#include "core/layers/parameter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>

#include "core/tensor/bf16.h"
#include "tests/support/device_cases.h"
#include "tests/support/download.h"

namespace megalith {
namespace {

class ParameterStoreTest : public test::OnDevice<DeviceType> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    pool_ = std::make_unique<MemoryPool>(device());
    stream_ = std::make_unique<Stream>(device(), "test");
  }

  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Stream> stream_;
};
INSTANTIATE_TEST_SUITE_P(Backends, ParameterStoreTest, testing::ValuesIn(test::devices()), test::name_of_device_case);

Parameter matrix(const std::string& name, std::int64_t rows, std::int64_t columns, float std = 0.5f) {
  return {.parts = {{.name = name}}, .shape = {rows, columns}, .init_std = std};
}

// On the CPU: initial weights are the same on every backend.
std::vector<float> initialised(const std::string& name, std::int64_t rows, std::int64_t columns, std::uint64_t seed,
                               float std = 0.5f) {
  MemoryPool pool(DeviceType::kCpu);
  Stream stream(DeviceType::kCpu, "test");
  ParameterStore store;
  store.begin_unit("unit");
  const Parameter& parameter = store.add(matrix(name, rows, columns, std));
  store.allocate(pool, DType::kFp32);
  store.initialize(stream, seed);
  return download(stream, parameter.weight);
}

TEST_P(ParameterStoreTest, ParametersAreAlignedViewsOfTheirUnit) {
  for (const auto& [dtype, gradients] :
       {std::pair{DType::kFp32, DType::kFp32}, {DType::kBf16, DType::kFp32}, {DType::kBf16, DType::kBf16}}) {
    ParameterStore store;
    store.begin_unit("first");
    store.add(matrix("a", 3, 5));
    store.add({.parts = {{.name = "b"}}, .shape = {7}});
    store.begin_unit("second");
    store.add(matrix("c", 100, 3));
    for (ParameterUnit& unit : store.units()) unit.shard = {.rank = 1, .ranks = 4};
    store.allocate(*pool_, dtype, gradients);
    ASSERT_EQ(store.units().size(), 2u);
    EXPECT_EQ(store.numel(), 15 + 7 + 300);
    for (const ParameterUnit& unit : store.units()) {
      EXPECT_EQ(unit.numel % (128 * 4), 0) << "four data-parallel shards stay aligned";
      EXPECT_EQ(unit.weights.numel(), unit.numel);
      EXPECT_EQ(unit.weights.dtype, dtype);
      EXPECT_EQ(unit.main_grads.dtype, gradients);
      std::int64_t end = 0;
      for (const Parameter* parameter : unit.parameters) {
        EXPECT_GE(parameter->offset, end) << "parameters overlap";
        end = parameter->offset + parameter->shape.numel();
        EXPECT_LE(end, unit.numel);
        for (const Tensor& view : {parameter->weight, parameter->main_grad}) {
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 256, 0u) << parameter->name();
          EXPECT_EQ(view.shape, parameter->shape);
          EXPECT_TRUE(view.is_contiguous());
        }
        EXPECT_EQ(parameter->weight.as<std::byte>() - unit.weights.as<std::byte>(),
                  parameter->offset * static_cast<std::int64_t>(size_of(dtype)));
        EXPECT_EQ(parameter->main_grad.as<std::byte>() - unit.main_grads.as<std::byte>(),
                  parameter->offset * static_cast<std::int64_t>(size_of(gradients)));
      }
    }
    EXPECT_EQ(store.units()[1].parameters[0]->unit, 1);
  }
}

TEST_P(ParameterStoreTest, AFusedParameterIsItsPartsOneBelowTheOther) {
  ParameterStore store;
  store.begin_unit("unit");
  const Parameter& fused =
      store.add({.parts = {{.name = "q", .rows = 4}, {.name = "k", .rows = 2}}, .shape = {6, 3}, .init_std = 0.5f});
  store.allocate(*pool_, DType::kFp32);
  store.initialize(*stream_, 3);
  EXPECT_EQ(fused.parts[0].global_shape, (Shape{4, 3}));
  EXPECT_EQ(fused.parts[1].global_shape, (Shape{2, 3}));
  EXPECT_EQ(fused.part_of(fused.weight, 0).shape, (Shape{4, 3}));
  EXPECT_EQ(fused.part_of(fused.weight, 1).as<float>(), fused.weight.as<float>() + 12);
  EXPECT_EQ(fused.part_of(fused.main_grad, 1).as<float>(), fused.main_grad.as<float>() + 12);
  // Each part has the numbers of a separate parameter.
  EXPECT_EQ(download(*stream_, fused.part_of(fused.weight, 0)), initialised("q", 4, 3, 3));
  EXPECT_EQ(download(*stream_, fused.part_of(fused.weight, 1)), initialised("k", 2, 3, 3));
}

TEST_P(ParameterStoreTest, ASliceHasTheNumbersOfTheWhole) {
  const std::vector<float> whole = initialised("w", 10, 7, 9);
  for (const std::int64_t first : {0, 3, 9}) {
    ParameterStore store;
    store.begin_unit("unit");
    Parameter slice = matrix("w", 1, 7);
    slice.parts[0].global_shape = {10, 7};
    slice.parts[0].global_row = first;
    const Parameter& added = store.add(slice);
    store.allocate(*pool_, DType::kFp32);
    store.initialize(*stream_, 9);
    const auto begin = whole.begin() + first * 7;
    EXPECT_EQ(download(*stream_, added.weight), std::vector<float>(begin, begin + 7)) << first;
  }
}

TEST_P(ParameterStoreTest, ColumnsHaveTheNumbersOfTheWholeAndPaddingIsZero) {
  const std::vector<float> whole = initialised("w", 10, 7, 9);
  for (const std::int64_t first : {0, 2, 5}) {
    ParameterStore store;
    store.begin_unit("unit");
    Parameter slice = matrix("w", 4, 2);
    slice.parts[0].global_shape = {10, 7};
    slice.parts[0].global_row = 8;  // only two of these exist
    slice.parts[0].global_column = first;
    const Parameter& added = store.add(slice);
    EXPECT_EQ(added.parts[0].live_rows(), 2);
    store.allocate(*pool_, DType::kFp32);
    store.initialize(*stream_, 9);
    const auto at = [&](std::int64_t row, std::int64_t column) {
      return whole[static_cast<std::size_t>(row * 7 + first + column)];
    };
    EXPECT_EQ(download(*stream_, added.weight),
              (std::vector<float>{at(8, 0), at(8, 1), at(9, 0), at(9, 1), 0, 0, 0, 0}));
  }
}

// Also if a rank holds only a part of the parameter, with any begin and end.
TEST_P(ParameterStoreTest, StripesHaveTheNumbersOfTheWhole) {
  const std::vector<float> whole = initialised("w", 24, 5, 9);
  for (const int ranks : {1, 3}) {
    std::vector<float> drawn;
    for (int rank = 0; rank < ranks; ++rank) {
      ParameterStore store;
      store.begin_unit("unit");
      Parameter stripes = matrix("w", 6, 5);
      stripes.parts[0].global_shape = {24, 5};
      stripes.parts[0].global_row = 14;
      stripes.parts[0].stripe = 2;
      stripes.parts[0].stripe_pitch = 4;
      const LogicalTensor& part = store.add(stripes).parts[0];
      EXPECT_EQ(part.live_rows(), 6);
      EXPECT_EQ(part.global_row_of(5), 23);
      EXPECT_EQ(part.neighbours(3), 1);
      ParameterUnit& unit = store.units()[0];
      unit.shard = {.rank = rank, .ranks = ranks};
      unit.resident_weights = unit.resident_gradients = ranks == 1;
      store.allocate(*pool_, DType::kFp32);
      store.initialize(*stream_, 9);
      const std::vector<float> own = download(*stream_, ranks == 1 ? unit.weights : unit.weight_shard);
      drawn.insert(drawn.end(), own.begin(), own.end());
    }
    for (std::size_t row = 0; row < 6; ++row) {
      const std::size_t from = (14 + row / 2 * 4 + row % 2) * 5;
      EXPECT_TRUE(std::equal(drawn.begin() + static_cast<std::ptrdiff_t>(row * 5),
                             drawn.begin() + static_cast<std::ptrdiff_t>(row * 5 + 5),
                             whole.begin() + static_cast<std::ptrdiff_t>(from)))
          << row << " of " << ranks;
    }
  }
}

// Blocks depend only on the unit's own parameters, not on a later copy or on the ranks.
TEST(ParameterUnits, ShardsAreWholeBlocks) {
  for (const int ranks : {1, 3, 8}) {
    MemoryPool pool(DeviceType::kPlan);
    ParameterStore store;
    store.begin_unit("layer");
    store.add(matrix("large", 4097, 1025));
    store.begin_unit("small");
    store.add(matrix("a", 10, 10));
    store.add(matrix("b", 300, 100));
    store.begin_unit("head of a later stage");
    store.add({.parts = {{.name = "norm"}}, .shape = {10000}});
    store.add(matrix("words", 5000, 1000)).is_copy = true;
    const std::vector<std::int64_t> blocks = {65536, 256, 128}, elements = {4199552, 30208, 5010176};
    for (ParameterUnit& unit : store.units()) unit.shard = {.rank = ranks - 1, .ranks = ranks};
    store.allocate(pool, DType::kBf16);
    for (std::size_t u = 0; u < blocks.size(); ++u) {
      const ParameterUnit& unit = store.units()[u];
      EXPECT_EQ(unit.block, blocks[u]);
      EXPECT_EQ(unit.numel % (ranks == 1 ? 128 : ranks * unit.block), 0);
      EXPECT_LT(unit.numel, elements[u] + (ranks == 1 ? 1 : ranks * unit.block));
      EXPECT_GE(unit.numel, elements[u]);
    }
  }
}

TEST_P(ParameterStoreTest, InitialWeightsDependOnSeedAndNameAlone) {
  ParameterStore store;
  store.begin_unit("other");
  store.add(matrix("before", 9, 9));
  store.begin_unit("unit");
  store.add(matrix("also before", 2, 2));
  const Parameter& w = store.add(matrix("w", 10, 7));
  for (ParameterUnit& unit : store.units()) unit.shard = {.rank = 1, .ranks = 2};
  store.allocate(*pool_, DType::kFp32);
  store.initialize(*stream_, 9);
  EXPECT_EQ(download(*stream_, w.weight), initialised("w", 10, 7, 9));
  EXPECT_NE(download(*stream_, w.weight), initialised("w", 10, 7, 10));
  EXPECT_NE(download(*stream_, w.weight), initialised("v", 10, 7, 9));
}

TEST_P(ParameterStoreTest, Bf16WeightsAreTheRoundedFp32Ones) {
  ParameterStore store;
  store.begin_unit("unit");
  const Parameter& w = store.add(matrix("w", 10, 7));
  store.allocate(*pool_, DType::kBf16);
  store.initialize(*stream_, 9);
  std::vector<float> rounded = initialised("w", 10, 7, 9);
  for (float& value : rounded) value = to_float(to_bf16(value));
  EXPECT_EQ(download(*stream_, w.weight), rounded);
}

TEST(InitialWeights, AreNormal) {
  constexpr std::int64_t kCount = 100'000;
  constexpr double kStd = 0.02;
  const std::vector<float> values = initialised("w", kCount / 100, 100, 1, static_cast<float>(kStd));
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] / kStd;
    mean += z / kCount;
    square += z * z / kCount;
    fourth += z * z * z * z / kCount;
    if (i > 0) neighbours += z * values[i - 1] / kStd / kCount;
  }
  // Five standard deviations of each estimate: 1, 2, 96 and 1 over the count.
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(square, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(fourth, 3, 5 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(neighbours, 0, 5 * std::sqrt(1.0 / kCount));
}

TEST_P(ParameterStoreTest, AShardAloneHasTheNumbersOfTheWhole) {
  const auto build = [&](const FlatShard& shard, bool resident) {
    auto store = std::make_unique<ParameterStore>();
    store->begin_unit("unit");
    // Columns of a wider tensor, rows beyond its end, and a vector.
    Parameter columns = matrix("columns", 20, 37);
    columns.parts[0].global_shape = {18, 101};
    columns.parts[0].global_column = 11;
    store->add(columns);
    store->add(matrix("whole", 13, 60));
    store->add({.parts = {{.name = "ones"}}, .shape = {70}, .initializer = Initializer::kOnes});
    ParameterUnit& unit = store->units()[0];
    unit.shard = shard;
    unit.resident_weights = unit.resident_gradients = resident;
    store->allocate(*pool_, DType::kFp32);
    store->initialize(*stream_, 3);
    return store;
  };
  for (int rank = 0; rank < 3; ++rank) {
    const FlatShard shard{.rank = rank, .ranks = 3};
    const auto whole = build(shard, true), part = build(shard, false);
    ParameterUnit& unit = part->units()[0];
    EXPECT_EQ(download(*stream_, unit.weight_shard), download(*stream_, whole->units()[0].weight_shard)) << rank;
    EXPECT_EQ(unit.grad_shard.numel() * 3, unit.numel);
    EXPECT_FALSE(unit.parameters[0]->weight.present() || unit.parameters[0]->main_grad.present());
    unit.bind_weights(whole->units()[0].weights);
    EXPECT_EQ(unit.parameters[1]->weight.data, whole->units()[0].parameters[1]->weight.data);
    unit.bind_weights({});
    EXPECT_FALSE(unit.parameters[1]->weight.present());
  }
}

TEST_P(ParameterStoreTest, OnesAndZerosAreConstant) {
  ParameterStore store;
  store.begin_unit("unit");
  const Parameter& ones = store.add({.parts = {{.name = "ones"}}, .shape = {5}, .initializer = Initializer::kOnes});
  const Parameter& zeros = store.add({.parts = {{.name = "zeros"}}, .shape = {5}, .initializer = Initializer::kZeros});
  store.allocate(*pool_, DType::kBf16);
  store.initialize(*stream_, 1);
  EXPECT_EQ(download(*stream_, ones.weight), std::vector<float>(5, 1.0f));
  EXPECT_EQ(download(*stream_, zeros.weight), std::vector<float>(5, 0.0f));
}

TEST_P(ParameterStoreTest, ATiedUseSharesTheWeightAndAddsItsGradientOnce) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    ParameterStore store;
    store.begin_unit("embedding");
    Parameter& table = store.add(matrix("table", 2, 3));
    store.begin_unit("head");
    store.add(matrix("norm", 1, 3));
    Parameter& tied = store.add_tied(table);
    store.allocate(*pool_, dtype, dtype);
    store.initialize(*stream_, 1);
    EXPECT_EQ(tied.weight.data, table.weight.data);
    EXPECT_NE(tied.main_grad.data, table.main_grad.data);
    EXPECT_EQ(store.numel(), 6 + 3) << "a tied use is no parameter of its own";
    EXPECT_EQ(store.units()[1].parameters.size(), 1u);

    upload(*stream_, std::vector<float>{1, 2, 3, 4, 5, 6}, table.main_grad);
    upload(*stream_, std::vector<float>{10, 20, 30, 40, 50, 60}, tied.main_grad);
    store.add_tied_gradients(*stream_);
    EXPECT_EQ(download(*stream_, table.main_grad), (std::vector<float>{11, 22, 33, 44, 55, 66}));

    store.zero_gradients(*stream_);
    EXPECT_EQ(download(*stream_, table.main_grad), std::vector<float>(6, 0.0f));
    EXPECT_EQ(download(*stream_, tied.main_grad), std::vector<float>(6, 0.0f));
  }
}

TEST_P(ParameterStoreTest, Bf16GradientsAreForBf16Weights) {
  ParameterStore store;
  EXPECT_THROW(store.allocate(*pool_, DType::kFp32, DType::kBf16), Error);
}

TEST(ParameterStore, AParameterWithoutAUnitIsAnError) {
  ParameterStore store;
  EXPECT_THROW(store.add(matrix("w", 1, 1)), Error);
  store.begin_unit("unit");
  EXPECT_THROW(store.add({.parts = {}, .shape = {1}}), Error);
}

}  // namespace
}  // namespace megalith
