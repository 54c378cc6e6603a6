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
#include "tests/support/op_cases.h"

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
  b.measure(state, op);
}
BENCHMARK(add)->Apply(both_dtypes);

void cast(benchmark::State& state) {
  Bandwidth b;
  const DType from = dtype_of(state), to = from == DType::kFp32 ? DType::kBf16 : DType::kFp32;
  b.measure(state, CastRows{.x = b.tensor({kElements}, from), .y = b.tensor({kElements}, to)});
}
BENCHMARK(cast)->Apply(both_dtypes);

void fill(benchmark::State& state) {
  Bandwidth b;
  const Fill op{.x = b.tensor({kElements}, dtype_of(state)), .value = 0};
  b.measure(state, op);
}
BENCHMARK(fill)->Apply(both_dtypes);

// A benchmark of an op's case in either dtype: make(bench, dtype).
template <class Make>
void measure_made(benchmark::State& state, Make make) {
  Bandwidth b;
  b.measure(state, make(b, dtype_of(state)));
}

template <bool exact>
void gelu_forward(benchmark::State& state) {
  measure_made(state, [](Bandwidth& b, DType type) {
    return test::gelu_forward(b, {.rows = 1, .columns = kElements, .dtype = type, .exact = exact});
  });
}
BENCHMARK_TEMPLATE(gelu_forward, false)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(gelu_forward, true)->Apply(both_dtypes);

template <bool exact>
void gelu_backward(benchmark::State& state) {
  measure_made(state, [](Bandwidth& b, DType type) {
    return test::gelu_backward(b, {.rows = 1, .columns = kElements, .dtype = type, .exact = exact});
  });
}
BENCHMARK_TEMPLATE(gelu_backward, false)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(gelu_backward, true)->Apply(both_dtypes);

void swiglu_forward(benchmark::State& state) {
  measure_made(state, [](Bandwidth& b, DType type) {
    return test::swiglu_forward(b, {.rows = 4096, .columns = 1024, .dtype = type});
  });
}
BENCHMARK(swiglu_forward)->Apply(both_dtypes);

void swiglu_backward(benchmark::State& state) {
  measure_made(state, [](Bandwidth& b, DType type) {
    return test::swiglu_backward(b, {.rows = 4096, .columns = 1024, .dtype = type});
  });
}
BENCHMARK(swiglu_backward)->Apply(both_dtypes);

void dropout(benchmark::State& state) {
  measure_made(state, [](Bandwidth& b, DType type) {
    return Dropout{.x = b.tensor({8192, 1024}, type),
                   .y = b.tensor({8192, 1024}, type),
                   .p = 0.1f,
                   .seed = 1,
                   .rows_per_sample = 1024,
                   .parameters = b.structure(MicrobatchParameters{.iteration = 1})};
  });
}
BENCHMARK(dropout)->Apply(both_dtypes);

template <std::int64_t vocab>
void cross_entropy(benchmark::State& state) {
  Bandwidth b;
  const DType type = dtype_of(state);
  const test::LossCase loss{
      .rows = kElements / vocab, .columns = vocab, .vocabulary = vocab, .dtype = type, .scale = 1};
  const Tensor fresh = b.tensor({loss.rows, vocab}, type);
  const CrossEntropy op = test::cross_entropy(b, loss, test::zipf_tokens(loss.rows, vocab));
  b.measure(state, op, [&] { std::memcpy(op.logits.data, fresh.data, fresh.bytes()); });
}
BENCHMARK_TEMPLATE(cross_entropy, 256)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(cross_entropy, 32768)->Apply(both_dtypes);
BENCHMARK_TEMPLATE(cross_entropy, 131072)->Apply(both_dtypes);

constexpr test::EmbeddingCase kEmbedding{.rows = 8192, .columns = 1024, .vocabulary = 256};

void embedding_forward(benchmark::State& state) {
  measure_made(state, [table = kEmbedding](Bandwidth& b, DType type) mutable {
    table.dtype = type;
    return test::embedding_forward(b, table, test::zipf_tokens(table.rows, table.vocabulary));
  });
}
BENCHMARK(embedding_forward)->Apply(both_dtypes);

void embedding_backward(benchmark::State& state) {
  measure_made(state, [table = kEmbedding](Bandwidth& b, DType type) mutable {
    table.dtype = type;
    return test::embedding_backward(b, table, test::zipf_tokens(table.rows, table.vocabulary));
  });
}
BENCHMARK(embedding_backward)->Apply(both_dtypes);

void sum_of_squares(benchmark::State& state) {
  Bandwidth b;
  SquaredTensor x{.x = b.tensor({kElements}, DType::kFp32)};
  x.pieces = b.tensor({x.num_pieces()}, DType::kFp64);
  const SumOfSquares op{.tensors = {x}};
  b.measure(state, op);
}
BENCHMARK(sum_of_squares)->Apply(fp32_only);

void adamw(benchmark::State& state) {
  Bandwidth b;
  const AdamW op{.ranges = {test::adamw_range(b, kElements, dtype_of(state), DType::kFp32)},
                 .parameters = b.structure(StepParameters{.learning_rate = 1e-6f, .adam_count = 10})};
  b.measure(state, op);
}
BENCHMARK(adamw)->Apply(both_dtypes);

}  // namespace
}  // namespace megalith::bench
