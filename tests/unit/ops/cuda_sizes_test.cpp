// Both backends passed the small cases against the references; here the tilings, row pieces and second passes that only
// large tensors have are compared. Sums of thousands of terms of either sign are compared with fp64 instead.
#include <cmath>

#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/dropout.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/norm/norm.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"
#include "core/ops/token/embedding.h"
#include "core/ops/token/sampling.h"
#include "tests/support/op_cases.h"
#include "tests/unit/ops/cuda_sizes.h"

namespace megalith::test {
namespace {

class CudaSizesTest : public CudaSizes {
 protected:
  // got[target[row]] = before[target[row]] + the sum of dy[row], against fp64 sums.
  void expect_row_sums(const Bytes& got, const Bytes& before, const Bytes& dy, const std::vector<std::int32_t>& target,
                       std::size_t columns) const {
    const std::size_t count = got.size() / sizeof(float);
    std::vector<double> want(count), magnitude(count);
    std::vector<std::int64_t> terms(count / columns, 1);
    for (std::size_t i = 0; i < count; ++i) {
      want[i] = element(before, DType::kFp32, i);
      magnitude[i] = std::abs(want[i]);
    }
    for (std::size_t row = 0; row < target.size(); ++row) {
      const auto to = static_cast<std::size_t>(target[row]);
      ++terms[to];
      for (std::size_t c = 0; c < columns; ++c) {
        const double value = element(dy, dtype(), row * columns + c);
        want[to * columns + c] += value;
        magnitude[to * columns + c] += std::abs(value);
      }
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double allowed = tolerance(DType::kFp32, terms[i / columns]) * magnitude[i];
      wrong += std::abs(element(got, DType::kFp32, i) - want[i]) <= allowed ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0u);
  }

  void compare_norms(std::int64_t rows, std::int64_t length) {
    const std::string what = to_string(Shape{rows, length});
    const NormCase norm{.rows = rows, .columns = length, .dtype = dtype()};
    compare("forward " + what, [&](Side& s) { return layer_norm_forward(s, norm); });
    compare("backward " + what, [&](Side& s) { return layer_norm_backward(s, norm); });
    NormCase alone = norm;
    alone.residual = false;
    compare("rms forward " + what, [&](Side& s) { return rms_norm_forward(s, alone); });
    compare("rms backward " + what, [&](Side& s) { return rms_norm_backward(s, alone); });
    alone.again = true;
    compare("rms backward and forward again " + what, [&](Side& s) { return rms_norm_backward(s, alone); });
  }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaSizesTest, testing::Values(DType::kFp32, DType::kBf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(CudaSizesTest, Norms) {
  // One pack a thread and less than a warp; two, three and four packs; several warps a row; odd; beyond the registers.
  for (const std::int64_t length : {64, 256, 512, 768, 1000, 1001, 1501, 1600, 2048, 3584, 4097, 8192, 16384, 20000}) {
    compare_norms(300, length);  // few rows: the backward has threads for each
    if (length <= 4097) compare_norms(length <= 1024 ? 2500 : 1500, length);
  }
  compare("heads of a fused projection", [&](Side& s) {
    const Tensor fused = s.normal({300, 12, 128}, dtype()), out = s.output({300, 12, 128}, dtype());
    return RmsNormForward{.x = fused.slice(1, 2, 8),
                          .weight = s.normal({128}, dtype()),
                          .y = out.slice(1, 3, 8),
                          .rstd = s.output({2400}, DType::kFp32)};
  });
}

// Few rows and many rows use different kernels.
TEST_P(CudaSizesTest, NormGradientOfARowHasTheSameBits) {
  const std::int64_t many = 2500, few = 600;
  for (const std::int64_t length : {24, 256, 768, 1001, 2048}) {
    Side gpu(DeviceType::kCuda);
    LayerNormBackward op = layer_norm_backward(gpu, {.rows = many, .columns = length, .dtype = dtype()});
    const Tensor of_few = gpu.output({few, length}, dtype());
    gpu.reset();
    launch(gpu.stream(), op);
    for (Tensor* rows : {&op.dy, &op.x, &op.mean, &op.rstd, &op.d_residual}) *rows = rows->slice(0, 0, few);
    op.dx = of_few;
    launch(gpu.stream(), op);
    const std::vector<Bytes> contents = gpu.contents();
    Bytes want = contents[6];
    want.resize(of_few.bytes());
    EXPECT_TRUE(contents.back() == want) << length;
  }
}

TEST_P(CudaSizesTest, CrossEntropy) {
  for (const std::int64_t columns : {1000, 5120, 50304, 50307, 128256, 152064}) {
    for (const bool gradient : {false, true}) {
      compare(std::to_string(columns), [&](Side& s) {
        std::vector<std::int32_t> labels = zipf_tokens(5, columns);
        labels[1] = -1, labels[2] = static_cast<std::int32_t>(columns) - 48;
        const LossCase loss{.rows = 5,
                            .columns = columns,
                            .vocabulary = columns - 47,
                            .dtype = dtype(),
                            .gradient = gradient,
                            .scale = 0.01f};
        return cross_entropy(s, loss, labels);
      });
    }
  }
}

// More rows than concurrent blocks, with ignored tokens. Cases: several blocks per multiprocessor, one, parts of a row
// in registers, and a part that is kept nowhere.
TEST_P(CudaSizesTest, CrossEntropyOfManyWideRows) {
  const std::int64_t rows = 300;
  for (const std::int64_t row_bytes : {100'608, 200'016, 256'512, 304'128, 400'016}) {
    const std::int64_t columns = row_bytes / static_cast<std::int64_t>(size_of(dtype()));
    compare(std::to_string(columns), [&](Side& s) {
      std::vector<std::int32_t> labels = zipf_tokens(rows, columns - 47);
      for (std::size_t row = 3; row < labels.size(); row += 7) labels[row] = -1;
      const LossCase loss{
          .rows = rows, .columns = columns, .vocabulary = columns - 47, .dtype = dtype(), .scale = 0.01f};
      return cross_entropy(s, loss, labels);
    });
  }
}

TEST_P(CudaSizesTest, Embedding) {
  for (const std::int64_t columns : {768, 1600, 2050}) {
    for (const bool same : {false, true}) {
      const std::int64_t rows = 6000;
      const auto tokens = same ? std::vector<std::int32_t>(rows, 17) : zipf_tokens(rows, 3000);
      EmbeddingCase table{.rows = rows,
                          .columns = columns,
                          .vocabulary = 3000,
                          .dtype = dtype(),
                          .positions = 1100,
                          .rows_per_sample = 1000};
      compare("forward", [&](Side& s) {
        EmbeddingForward op = embedding_forward(s, table, tokens);
        op.start = s.structure(std::int32_t{100});
        return op;
      });
      SCOPED_TRACE("backward " + std::to_string(columns));
      table.positions = 1000;
      Side gpu(DeviceType::kCuda);
      const EmbeddingBackward op = embedding_backward(gpu, table, tokens);
      const std::vector<Bytes> got = results(gpu, op), before = gpu.initial();
      std::vector<std::int32_t> positions(rows);
      for (std::int32_t row = 0; row < rows; ++row) positions[static_cast<std::size_t>(row)] = row % 1000;
      expect_row_sums(got[2], before[2], before[1], tokens, static_cast<std::size_t>(columns));
      expect_row_sums(got[3], before[3], before[1], positions, static_cast<std::size_t>(columns));
    }
  }
}

TEST_P(CudaSizesTest, Rope) {
  for (const std::int64_t dim : {64, 128, 80}) {
    for (const bool backward : {false, true}) {
      compare(std::to_string(dim), [&](Side& s) {
        const Tensor fused = s.normal({3, 700, 10, dim}, dtype());
        return Rope{.x = fused.slice(2, 1, 6),
                    .y = fused.slice(2, 1, 6),
                    .rotary_dim = dim == 80 ? 32 : dim,
                    .scaling = {.kind = dim == 64 ? RopeScalingKind::kYarn : RopeScalingKind::kLlama3,
                                .factor = dim == 80 ? 1.0 : 8.0},
                    .backward = backward,
                    .start = s.structure(std::int32_t{5000})};
      });
    }
  }
}

TEST_P(CudaSizesTest, Activations) {
  for (const std::int64_t columns : {3072, 3001}) {
    ActivationCase act{.rows = 301, .columns = columns, .dtype = dtype()};
    for (const bool exact : {false, true}) {
      act.exact = exact;
      compare("gelu", [&](Side& s) { return gelu_forward(s, act); });
      compare("gelu gradient", [&](Side& s) { return gelu_backward(s, act); });
    }
    compare("swiglu", [&](Side& s) { return swiglu_forward(s, act); });
    compare("swiglu gradient", [&](Side& s) { return swiglu_backward(s, act); });
    act.again = true;
    compare("swiglu gradient and swiglu again", [&](Side& s) { return swiglu_backward(s, act); });
  }
}

TEST_P(CudaSizesTest, SameBitsAsOnTheCpu) {
  for (const std::int64_t columns : {768, 1000, 1001}) {
    const Shape shape{1003, columns};
    compare(
        "dropout",
        [&](Side& s) {
          return Dropout{.x = s.normal(shape, dtype()),
                         .y = s.output(shape, dtype()),
                         .p = 0.1f,
                         .seed = 99,
                         .layer = 4,
                         .site = 2,
                         .rows_per_sample = 100,
                         .parameters = s.structure(MicrobatchParameters{.iteration = 7, .first_sample = 31}),
                         .part = {.first = 12},
                         .first_column = 64};
        },
        kExact);
    compare(
        "add",
        [&](Side& s) {
          return Add{.a = s.normal(shape, dtype()), .b = s.normal(shape, dtype()), .y = s.output(shape, dtype())};
        },
        kExact);
    compare(
        "sum of parts",
        [&](Side& s) {
          Shape parts{3};
          for (int d = 0; d < shape.rank(); ++d) parts.push_back(shape[d]);
          return SumParts{.parts = s.normal(parts, dtype()), .y = s.output(shape, dtype())};
        },
        kExact);
    for (const DType to : {DType::kFp32, DType::kBf16}) {
      compare(
          "cast", [&](Side& s) { return CastRows{.x = s.normal(shape, dtype()), .y = s.output(shape, to)}; }, kExact);
    }
    compare(
        "copy",
        [&](Side& s) {
          const Tensor from = s.normal({59, 17, columns}, dtype());
          Tensor to = s.output({17, 59, columns}, dtype());
          std::swap(to.strides[0], to.strides[1]);
          to.shape = from.shape;
          return Copy{.src = from, .dst = to};
        },
        kExact);
    compare(
        "fill", [&](Side& s) { return Fill{.x = s.output(shape, dtype()).slice(1, 8, columns - 9), .value = 1.5}; },
        kExact);
  }
}

TEST_P(CudaSizesTest, AdamWHasTheSameBitsAsOnTheCpu) {
  for (const std::int64_t count : {2000000, 1999999}) {
    for (const DType state : {DType::kFp32, DType::kBf16}) {
      compare(
          "adamw",
          [&](Side& s) {
            const StepParameters step{.learning_rate = 3e-4f, .adam_count = 12345, .clip_factor = 0.37f};
            return AdamW{.ranges = {adamw_range(s, count, dtype(), state)}, .parameters = s.structure(step)};
          },
          kExact);
    }
  }
}

TEST_P(CudaSizesTest, Reductions) {
  for (const Shape& shape :
       {Shape{8, 2048}, Shape{300, 1001}, Shape{1100, 3072}, Shape{4001, 3072}, Shape{40000, 70}, Shape{3000, 1001}}) {
    compare("rows", [&](Side& s) {
      const RowSum sum{.x = s.normal(shape, dtype()), .out = s.normal({shape[1]}, DType::kFp32)};
      return ReduceRows{.sums = {sum}, .accumulate = true};
    });
  }
  for (const std::int64_t count : {65536, 3000001}) {
    compare("scalar", [&](Side& s) {
      return ReduceToScalar{
          .x = s.normal({count}, DType::kFp32), .out = s.normal({1}, DType::kFp32), .accumulate = true};
    });
    compare("squares", [&](Side& s) {
      SumOfSquares op{.tensors = {{.x = s.normal({count + 1}, dtype()).slice(0, 1, count), .begin = 1},
                                  {.x = s.normal({count}, dtype())}}};
      for (SquaredTensor& tensor : op.tensors) tensor.pieces = s.output({tensor.num_pieces()}, DType::kFp64);
      return op;
    });
  }
}

TEST_P(CudaSizesTest, Sampling) {
  for (const std::int64_t columns : {50257, 128256}) {
    compare("greedy", [&](Side& s) {
      return Sample{.logits = s.normal({7, columns}, dtype()),
                    .vocab_size = columns - 3,
                    .temperature = 0,
                    .position = s.structure(std::int32_t{77}),
                    .out = s.output({7}, DType::kInt32)};
    });
    for (const auto& [top_k, top_p] : {std::pair{0, 0.0f}, {50, 0.0f}, {0, 0.9f}, {500, 0.8f}}) {
      compare("sample", [&, k = top_k, p = top_p](Side& s) {
        Sample op{.logits = s.normal({7, columns}, dtype(), 3),
                  .vocab_size = columns - 3,
                  .temperature = 0.8f,
                  .top_k = k,
                  .top_p = p,
                  .seed = 11,
                  .position = s.structure(std::int32_t{77}),
                  .out = s.output({7}, DType::kInt32)};
        return op;
      });
    }
  }
}

}  // namespace
}  // namespace megalith::test
