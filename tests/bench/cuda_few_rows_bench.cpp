// Microseconds of a launch in a captured graph of many, with a warm L2 cache: the bound for small microbatches.
//   build/PRESET/tests/cuda_few_rows_bench
#include <fmt/format.h>

#include <utility>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/reduce.h"
#include "tests/bench/cuda_workbench.h"
#include "tests/support/op_cases.h"

namespace megalith::bench {
namespace {

constexpr DType kBf16 = DType::kBf16, kFp32 = DType::kFp32;
constexpr int kLaunches = 50;

class GraphBench : public Workbench {
 public:
  template <class... Ops>
  void measure(std::string_view what, const Ops&... ops) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    (run(stream_, ops), ...);  // once, since libraries load kernels
    MEGALITH_CUDA_CHECK(cudaStreamBeginCapture(stream_.handle(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kLaunches; ++i) (run(stream_, ops), ...);
    MEGALITH_CUDA_CHECK(cudaStreamEndCapture(stream_.handle(), &graph));
    MEGALITH_CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
    const double time = seconds([&] { MEGALITH_CUDA_CHECK(cudaGraphLaunch(ready, stream_.handle())); });
    fmt::print("{:48} {:8.2f}\n", what, 1e6 * time / kLaunches);
    MEGALITH_CUDA_CHECK(cudaGraphExecDestroy(ready));
    MEGALITH_CUDA_CHECK(cudaGraphDestroy(graph));
  }

  RowSum sum_of(const Tensor& x) { return {.x = x, .out = tensor({x.size(1)}, kFp32)}; }
};

// Ops of a GPT-2 layer's MLP: the norm, and the sums of its two linears' biases and of the norm's weights.
void bench_segment(GraphBench& bench, std::int64_t rows, std::int64_t columns) {
  bench.reset();
  const test::NormCase of{.rows = rows, .columns = columns};
  const LayerNormBackward norm = layer_norm_backward(bench, of);
  const RowSum fc2 = bench.sum_of(norm.dy), fc1 = bench.sum_of(bench.tensor({rows, 4 * columns}, kBf16));
  const RowSum weight = bench.sum_of(norm.d_weight_partial), bias = bench.sum_of(norm.d_bias_partial);
  const ReduceRows all = bench.ready(ReduceRows{.sums = {fc2, fc1, weight, bias}, .accumulate = true});
  const std::string shape = fmt::format("[{}, {}]", rows, columns);
  bench.measure("layer_norm_backward " + shape, norm);
  for (const RowSum& sum : all.sums) {
    bench.measure(fmt::format("reduce_rows [{}, {}] {}", sum.x.size(0), sum.x.size(1), name_of(sum.x.dtype)),
                  bench.ready(ReduceRows{.sums = {sum}, .accumulate = true}));
  }
  bench.measure("reduce_rows of these four " + shape, all);
  bench.measure("layer_norm_backward and reduce_rows " + shape, norm, all);
  bench.measure("layer_norm_forward " + shape, layer_norm_forward(bench, of));
}

void bench_all() {
  GraphBench bench;
  bench.measure("fill [4] fp32", Fill{.x = bench.tensor({4}, kFp32), .value = 1});
  for (const auto& [rows, columns] : {std::pair{256, 256}, {256, 768}, {1024, 768}, {2048, 1024}, {65536, 768}})
    bench_segment(bench, rows, columns);
}

}  // namespace
}  // namespace megalith::bench

int main() { return megalith::bench::bench_main("cuda_few_rows_bench", megalith::bench::bench_all); }
