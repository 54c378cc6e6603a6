// Speed of gemm, attention, norms, RoPE and sums at the sizes of a GPT with 4 layers, hidden 256, sequence 256. The
// microbatch is 8 (T = 2048 tokens, vocabulary 384); memory-bound ops also have sizes that no cache holds.
//   build/PRESET/tests/matrix_ops_bench --benchmark_counters_tabular=true
#include <string>
#include <utility>
#include <vector>

#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/norm/norm.h"
#include "tests/bench/bandwidth.h"
#include "tests/support/op_cases.h"

namespace megalith::bench {
namespace {

constexpr DType kFloats[] = {DType::kFp32, DType::kBf16};

// A benchmark `body(bench, state)`; few iterations suffice, since a median is reported.
template <class Body>
void add(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [body](benchmark::State& state) {
                                 Bandwidth bench;
                                 body(bench, state);
                               })
      ->UseManualTime()
      ->Iterations(31)
      ->Unit(benchmark::kMicrosecond);
}

// Twelve independent chains of multiply-adds keep both units busy; returns the FLOPs done.
double multiply_add() {
  constexpr int kRounds = 100'000, kChains = 12;
  __m256 sum[kChains];
  for (__m256& s : sum) s = _mm256_set1_ps(1);
  __m256 factor = _mm256_set1_ps(0.999f);
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& s : sum) s = _mm256_fmadd_ps(s, factor, factor);
    asm volatile("" : "+x"(factor));
  }
  for (__m256& s : sum) benchmark::DoNotOptimize(s);
  return 2.0 * 8 * kChains * kRounds;
}

// Compute-bound: GFLOP/s, and percent of one core's multiply-adds, measured in turns with the op.
template <class Op>
void measure_compute(Bandwidth& bench, benchmark::State& state, const Op& op) {
  Access accesses(Op::kName);
  access(op, accesses);
  const auto enqueue = [&bench](const CpuStream::Task& task) { bench.stream().cpu()->enqueue(task); };
  std::vector<double> seconds, peaks;
  for (auto _ : state) {
    double start = 0, middle = 0, end = 0, flops = 0;
    enqueue([&start] { start = thread_seconds(); });
    launch(bench.stream(), op);
    enqueue([&middle] { middle = thread_seconds(); });
    enqueue([&flops] { flops = multiply_add(); });
    enqueue([&end] { end = thread_seconds(); });
    bench.stream().synchronize();
    seconds.push_back(middle - start);
    peaks.push_back(flops / (end - middle));
    state.SetIterationTime(seconds.back());
  }
  const double rate = accesses.flops() / median(seconds);
  state.counters["GFLOP/s"] = 1e-9 * rate;
  state.counters["percent_of_peak"] = 100 * rate / median(peaks);
}

void add_gemm() {
  for (const test::ProductCase& p : {test::ProductCase{"qkv_forward", 2048, 768, 256, false, true, false, false},
                                     {"projection_forward", 2048, 256, 256, false, true, false, false},
                                     {"fc1_forward", 2048, 1024, 256, false, true, false, false},
                                     {"fc2_forward", 2048, 256, 1024, false, true, false, false},
                                     {"logits_forward", 2048, 384, 256, false, true, false, false},
                                     {"qkv_backward_data", 2048, 256, 768, false, false, false, false},
                                     {"fc1_backward_data", 2048, 256, 1024, false, false, false, false},
                                     {"fc2_backward_data", 2048, 1024, 256, false, false, false, false},
                                     {"qkv_backward_weight", 768, 256, 2048, true, false, false, true},
                                     {"fc2_backward_weight", 256, 1024, 2048, true, false, false, true},
                                     {"square_1024", 1024, 1024, 1024, false, false, false, false},
                                     {"square_1024_both_transposed", 1024, 1024, 1024, true, true, false, false},
                                     {"one_token_fc1", 1, 1024, 256, false, true, false, false}}) {
    for (const DType dtype : kFloats) {
      add("gemm/" + p.name + "/" + std::string(name_of(dtype)), [p, dtype](Bandwidth& bench, benchmark::State& state) {
        measure_compute(bench, state, gemm(bench, p, dtype));
      });
    }
  }
}

AttentionBackward attention_gradient(Bandwidth& bench, const test::AttentionOpCase& z) {
  AttentionBackward op = attention_backward(bench, z, attention_forward(bench, z));
  // Any constant near the true values does: probabilities stay of ordinary size.
  std::fill_n(op.lse.as<float>(), op.lse.numel(), 5.0f);
  op.workspace = bench.tensor({static_cast<std::int64_t>(workspace_bytes(op, DeviceType::kCpu))}, DType::kUint8);
  return op;
}

void add_attention() {
  for (test::AttentionOpCase z : {test::AttentionOpCase{8, 256, 4, 4, 64},
                                  {8, 256, 8, 8, 32},
                                  {8, 256, 8, 2, 32},
                                  {2, 1024, 4, 4, 64},
                                  {1, 2048, 8, 2, 128}}) {
    for (const DType dtype : kFloats) {
      z.dtype = dtype;
      const std::string sizes = std::string("/B") + std::to_string(z.samples) + "_S" + std::to_string(z.tokens) + "_N" +
                                std::to_string(z.heads) + "_K" + std::to_string(z.kv_heads) + "_D" +
                                std::to_string(z.dim) + "/" + std::string(name_of(dtype));
      add("attention_forward" + sizes, [z](Bandwidth& bench, benchmark::State& state) {
        measure_compute(bench, state, attention_forward(bench, z));
      });
      add("attention_backward" + sizes, [z](Bandwidth& bench, benchmark::State& state) {
        measure_compute(bench, state, attention_gradient(bench, z));
      });
    }
  }
}

void add_norms(const test::NormCase& norm) {
  const std::string name = "/" + std::to_string(norm.rows) + "x" + std::to_string(norm.columns) +
                           (norm.residual ? "_residual/" : "/") + std::string(name_of(norm.dtype));
  const auto add_norm = [&](const char* op, auto make) {
    add(op + name, [=](Bandwidth& b, benchmark::State& state) { b.measure(state, make(b, norm)); });
  };
  add_norm("rms_norm_forward", test::rms_norm_forward<Bandwidth>);
  add_norm("layer_norm_forward", test::layer_norm_forward<Bandwidth>);
  add_norm("rms_norm_backward", test::rms_norm_backward<Bandwidth>);
  add_norm("layer_norm_backward", test::layer_norm_backward<Bandwidth>);
}

void add_pointwise() {
  for (const DType dtype : kFloats) {
    for (const auto& [rows, columns] : {std::pair{2048, 256}, {32768, 256}, {2048, 4096}}) {
      for (const bool residual : {false, true}) {
        add_norms({.rows = rows, .columns = columns, .dtype = dtype, .residual = residual, .sums = DeviceType::kCpu});
      }
    }
    for (const std::int64_t dim : {32, 64}) {
      const Shape shape{8, 256, 256 / dim, dim};
      const std::string name = "rope/B8_S256_N" + std::to_string(256 / dim) + "_D" + std::to_string(dim) + "/";
      add(name + std::string(name_of(dtype)), [shape, dtype, dim](Bandwidth& bench, benchmark::State& state) {
        const Tensor x = bench.tensor(shape, dtype), y = bench.tensor(shape, dtype);
        bench.measure(state, Rope{.x = x, .y = y, .rotary_dim = dim});
      });
    }
    add("reduce_rows/2048x1024/" + std::string(name_of(dtype)), [dtype](Bandwidth& bench, benchmark::State& state) {
      const Tensor x = bench.tensor({2048, 1024}, dtype);
      bench.measure(state, ReduceRows{.sums = {{.x = x, .out = bench.tensor({1024}, DType::kFp32)}}});
    });
  }
  add("reduce_to_scalar/1048576", [](Bandwidth& bench, benchmark::State& state) {
    const Tensor x = bench.tensor({1 << 20}, DType::kFp32);
    bench.measure(state, ReduceToScalar{.x = x, .out = bench.tensor({1}, DType::kFp32)});
  });
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) {
  megalith::bench::add_gemm();
  megalith::bench::add_attention();
  megalith::bench::add_pointwise();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
