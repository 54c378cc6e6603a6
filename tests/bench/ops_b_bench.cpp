// Elementwise, loss and optimizer ops as GB/s and as a percentage of a copy loop:
//   build/PRESET/tests/ops_b_bench --benchmark_counters_tabular=true
#include <cstring>

#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/dropout.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"
#include "core/ops/token/embedding.h"
#include "tests/bench/bandwidth.h"

namespace megalith::bench {
namespace {

constexpr std::int64_t kElements = 8 << 20;

DType dtype_of(const benchmark::State& state) { return state.range(0) == 16 ? DType::kBf16 : DType::kFp32; }

void both_dtypes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bits")->Arg(32)->Arg(16)->Iterations(31)->UseManualTime()->Unit(benchmark::kMillisecond);
}
void fp32_only(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bits")->Arg(32)->Iterations(31)->UseManualTime()->Unit(benchmark::kMillisecond);
}

void add(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const Add op{.a = b.tensor({kElements}, type), .b = b.tensor({kElements}, type), .y = b.tensor({kElements}, type)};
  b.measure(state, op, static_cast<std::int64_t>(3 * op.a.bytes()));
}
BENCHMARK(add)->Apply(both_dtypes);

void cast(benchmark::State& state) {
  Bandwidth b;
  const DType from = dtype_of(state), to = from == DType::kFp32 ? DType::kBf16 : DType::kFp32;
  b.measure(state, CastRows{.x = b.tensor({kElements}, from), .y = b.tensor({kElements}, to)}, 6 * kElements);
}
BENCHMARK(cast)->Apply(both_dtypes);

void fill(benchmark::State& state) {
  Bandwidth b;
  const Fill op{.x = b.tensor({kElements}, dtype_of(state)), .value = 0};
  b.measure(state, op, static_cast<std::int64_t>(op.x.bytes()));
}
BENCHMARK(fill)->Apply(both_dtypes);

template <bool exact>
void gelu_forward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const GeluForward op{.x = b.tensor({kElements}, type), .y = b.tensor({kElements}, type), .exact = exact};
  b.measure(state, op, static_cast<std::int64_t>(2 * op.x.bytes()));
}
BENCHMARK_TEMPLATE(gelu_forward, false)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(gelu_forward, true)->Apply(both_dtypes);

template <bool exact>
void gelu_backward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const GeluBackward op{.x = b.tensor({kElements}, type),
                        .dy = b.tensor({kElements}, type),
                        .dx = b.tensor({kElements}, type),
                        .exact = exact};
  b.measure(state, op, static_cast<std::int64_t>(3 * op.x.bytes()));
}
BENCHMARK_TEMPLATE(gelu_backward, false)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(gelu_backward, true)->Apply(both_dtypes);

void swiglu_forward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const SwigluForward op{.x = b.tensor({4096, 2048}, type), .y = b.tensor({4096, 1024}, type)};
  b.measure(state, op, static_cast<std::int64_t>(op.x.bytes() + op.y.bytes()));
}
BENCHMARK(swiglu_forward)->Apply(both_dtypes);

void swiglu_backward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const SwigluBackward op{
      .x = b.tensor({4096, 2048}, type), .dy = b.tensor({4096, 1024}, type), .dx = b.tensor({4096, 2048}, type)};
  b.measure(state, op, static_cast<std::int64_t>(2 * op.x.bytes() + op.dy.bytes()));
}
BENCHMARK(swiglu_backward)->Apply(both_dtypes);

void dropout(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const MicrobatchParameters parameters{.iteration = 1};
  const Dropout op{.x = b.tensor({8192, 1024}, type),
                   .y = b.tensor({8192, 1024}, type),
                   .p = 0.1f,
                   .seed = 1,
                   .rows_per_sample = 1024,
                   .parameters = &parameters};
  b.measure(state, op, static_cast<std::int64_t>(2 * op.x.bytes()));
}
BENCHMARK(dropout)->Apply(both_dtypes);

template <std::int64_t vocab>
void cross_entropy(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const std::int64_t rows = kElements / vocab;
  const MicrobatchParameters parameters{.loss_scale = 1};
  const Tensor fresh = b.tensor({rows, vocab}, type);
  const CrossEntropy op{.logits = b.tensor({rows, vocab}, type),
                        .labels = b.tensor({rows}, DType::kInt32),
                        .loss = b.tensor({rows}, DType::kFp32),
                        .vocab_size = vocab,
                        .write_gradient = true,
                        .parameters = &parameters};
  b.measure(state, op, static_cast<std::int64_t>(2 * op.logits.bytes()),
            [&] { std::memcpy(op.logits.data, fresh.data, fresh.bytes()); });
}
BENCHMARK_TEMPLATE(cross_entropy, 256)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(cross_entropy, 32768)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(cross_entropy, 131072)->Apply(both_dtypes);

void embedding_forward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const EmbeddingForward op{.tokens = b.tensor({8192}, DType::kInt32),
                            .table = b.tensor({256, 1024}, type),
                            .y = b.tensor({8192, 1024}, type)};
  b.measure(state, op, static_cast<std::int64_t>(2 * op.y.bytes()));
}
BENCHMARK(embedding_forward)->Apply(both_dtypes);

void embedding_backward(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const EmbeddingBackward op{.tokens = b.tensor({8192}, DType::kInt32),
                             .dy = b.tensor({8192, 1024}, type),
                             .d_table = b.tensor({256, 1024}, DType::kFp32)};
  b.measure(state, op, static_cast<std::int64_t>(op.dy.bytes()) + 8192 * 1024 * 8);
}
BENCHMARK(embedding_backward)->Apply(both_dtypes);

void sum_of_squares(benchmark::State& state) {
  Bandwidth b;
  SquaredTensor x{.x = b.tensor({kElements}, DType::kFp32)};
  x.pieces = b.tensor({x.num_pieces()}, DType::kFp64);
  const SumOfSquares op{.tensors = {x}};
  b.measure(state, op, 4 * kElements);
}
BENCHMARK(sum_of_squares)->Apply(fp32_only);

void adamw(benchmark::State& state) {
  Bandwidth b;
  const StepParameters parameters{.learning_rate = 1e-6f, .adam_count = 10};
  AdamWRange range{.param = {},
                   .main_param = b.tensor({kElements}, DType::kFp32),
                   .grad = b.tensor({kElements}, DType::kFp32),
                   .exp_avg = b.tensor({kElements}, DType::kFp32),
                   .exp_avg_sq = b.tensor({kElements}, DType::kFp32),
                   .weight_decay = 0.1};
  for (std::int64_t i = 0; i < kElements; ++i) range.exp_avg_sq.as<float>()[i] = 1;
  const bool separate = dtype_of(state) == DType::kBf16;
  range.param = separate ? b.tensor({kElements}, DType::kBf16) : range.main_param;
  const AdamW op{.ranges = {range}, .parameters = &parameters};
  b.measure(state, op, (28 + (separate ? 2 : 0)) * kElements);
}
BENCHMARK(adamw)->Apply(both_dtypes);

}  // namespace
}  // namespace megalith::bench
