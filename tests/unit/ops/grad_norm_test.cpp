#include "core/ops/grad_norm.h"

#include <cmath>
#include <limits>

#include "core/ops/elementwise.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class GradNormTest : public OpTest {
 protected:
  StepParameters finalize(const Values& sums, double loss, double clip, const StepParameters& before) {
    StepParameters* parameters = device_struct(before);
    double sum = 0;
    for (const double square : sums) sum += square;
    const bool counts = std::isfinite(loss) && std::isfinite(static_cast<float>(std::sqrt(sum)));
    const Idles idle = counts ? Idles{} : Idles{{parameters, "a step that is skipped is not counted"}};
    const auto n = static_cast<std::int64_t>(sums.size());
    run(GradNormFinalize{.sums = input({n}, DType::kFp64, sums),
                         .loss = input({1}, DType::kFp32, {loss}),
                         .clip_grad = clip,
                         .parameters = parameters},
        idle);
    return read_struct(parameters);
  }
};
MEGALITH_OP_TESTS(GradNormTest);

TEST_P(GradNormTest, SumOfSquares) {
  std::vector<Tensor> tensors;
  const std::vector<std::int64_t> sizes = {0, 1, 7, 8, 31, 32, 33, 0, 1000, 10007, 16384, 16385, 100003};
  for (const std::int64_t n : sizes) tensors.push_back(input({n}));
  const Tensor out = output({static_cast<std::int64_t>(sizes.size())}, DType::kFp64);
  run(SumOfSquares{.tensors = tensors, .out = out});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    long double want = 0;
    for (const double v : values(tensors[i])) want += static_cast<long double>(v) * static_cast<long double>(v);
    expect_close(out.slice(0, static_cast<std::int64_t>(i), 1), {static_cast<double>(want)},
                 {.length = sizes[i], .accumulator = DType::kFp64});
  }
}

// Also more tensors than one launch takes on CUDA.
TEST_P(GradNormTest, ASumDependsOnItsTensorAlone) {
  const Tensor x = input({70001}), unaligned = output({70002}).slice(0, 1, 70001);
  const Tensor alone = output({1}, DType::kFp64), many = output({1200}, DType::kFp64);
  run(SumOfSquares{.tensors = {x}, .out = alone});
  const double want = values(alone)[0];
  std::vector<Tensor> tensors;
  for (std::int64_t i = 0; i < 1200; ++i)
    tensors.push_back(i % 300 == 7 ? x : i % 300 == 8 ? unaligned : x.slice(0, i, i % 6));
  launch(stream(), Copy{.src = x, .dst = unaligned});
  launch(stream(), ready(SumOfSquares{.tensors = tensors, .out = many}));
  const Values sums = values(many);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (i % 300 == 7 || i % 300 == 8) {
      ASSERT_EQ(sums[i], want) << i;
    }
    ASSERT_GE(sums[i], 0) << i;
  }
  EXPECT_EQ(sums[6], 0);
}

TEST_P(GradNormTest, SquaresBeyondFp32AndNotANumber) {
  const Tensor out = output({2}, DType::kFp64);
  Values ones(40, 1.0);
  ones[39] = std::nan("");
  run(SumOfSquares{.tensors = {input({2}, dtype(), {1e30, -1e30}), input({40}, dtype(), ones)}, .out = out});
  EXPECT_NEAR(values(out)[0], 2e60, dtype() == DType::kFp32 ? 1e54 : 2e58);
  EXPECT_TRUE(std::isnan(values(out)[1]));
}

TEST_P(GradNormTest, NormClipAndCount) {
  const StepParameters before{.iteration = 5, .learning_rate = 0.5f, .skip = 1, .adam_count = 3};
  const StepParameters clipped = finalize({9, 0, 16}, 2.5, 1.0, before);
  EXPECT_EQ(clipped.grad_norm, 5);
  EXPECT_FLOAT_EQ(clipped.clip_factor, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(clipped.skip, 0);
  EXPECT_EQ(clipped.adam_count, 4);
  EXPECT_EQ(clipped.loss, 2.5f);
  EXPECT_EQ(clipped.iteration, 5);
  EXPECT_EQ(clipped.learning_rate, 0.5f);
  EXPECT_EQ(finalize({9, 0, 16}, 2.5, 10.0, before).clip_factor, 1);
  EXPECT_EQ(finalize({9, 0, 16}, 2.5, 0, before).clip_factor, 1);
  EXPECT_EQ(finalize({}, 0, 1, before).grad_norm, 0);
}

TEST_P(GradNormTest, NotFiniteSkipsTheStep) {
  const double inf = std::numeric_limits<double>::infinity();
  const StepParameters before{.adam_count = 3};
  for (const StepParameters& after : {finalize({1, std::nan("")}, 1, 1, before), finalize({1, inf}, 1, 1, before),
                                      finalize({1e300, 1e300}, 1, 1, before), finalize({1}, std::nan(""), 1, before),
                                      finalize({1}, -inf, 1, before)}) {
    EXPECT_EQ(after.skip, 1);
    EXPECT_EQ(after.adam_count, 3);
    EXPECT_EQ(after.clip_factor, 1);
  }
}

TEST_P(GradNormTest, WriteParameters) {
  StepParameters* step = device_struct(StepParameters{.skip = 1, .adam_count = 8});
  run(WriteStepParameters{.iteration = 12, .learning_rate = 0.25f, .parameters = step});
  EXPECT_EQ(read_struct(step).iteration, 12);
  EXPECT_EQ(read_struct(step).learning_rate, 0.25f);
  EXPECT_EQ(read_struct(step).adam_count, 8);
  EXPECT_EQ(read_struct(step).skip, 1);
  MicrobatchParameters* microbatch = device_struct(MicrobatchParameters{});
  run(WriteMicrobatchParameters{.value = {.iteration = 3, .first_sample = 44, .loss_scale = 0.5f}, .out = microbatch});
  EXPECT_EQ(read_struct(microbatch).iteration, 3);
  EXPECT_EQ(read_struct(microbatch).first_sample, 44);
  EXPECT_EQ(read_struct(microbatch).loss_scale, 0.5f);
}

}  // namespace
}  // namespace megalith::test
