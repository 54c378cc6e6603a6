// Costs of a GPT-2 MLP's epilogues on the GPU, fused into the GEMM and as separate ops, at the sizes of configs/.
//   build/PRESET/tests/cuda_epilogue_bench
// Each variant has its measured GEMM algorithm; variants alternate. "GEMM" is the product only (forward: with and
// without its bias). The last lines compare column sums of the bias gradients with a copy of the same bytes.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/reduce.h"
#include "tests/bench/cuda_workbench.h"

namespace megalith::bench {
namespace {

struct Sizes {
  const char* model;
  std::int64_t tokens, hidden;
};
constexpr Sizes kSizes[] = {{"gpt2_124m", 65536, 768}, {"gpt2_1.5b", 16384, 1600}, {"gpt2_1.5b", 32768, 1600}};

struct Way {
  std::string name;
  Gemm gemm;
  bool forward = false, backward = false;  // a separate GELU after the GEMM
};

void run_way(CudaStream& stream, const Way& way, const Tensor& saved, const Tensor& y) {
  run(stream, way.gemm);
  if (way.forward) run(stream, GeluForward{.x = way.gemm.c, .y = y});
  if (way.backward) run(stream, GeluBackward{.x = saved, .dy = way.gemm.c, .dx = way.gemm.c});
}

void bench_gelu(Workbench& bench, const std::shared_ptr<GemmAlgorithms>& table, const Sizes& z) {
  CudaStream& stream = bench.stream();
  const std::int64_t ffn = 4 * z.hidden;
  const auto ways = [&] {
    bench.reset();
    const Tensor x = bench.tensor({z.tokens, z.hidden}, DType::kBf16), bias = bench.tensor({ffn}, DType::kBf16);
    const Tensor w = bench.tensor({ffn, z.hidden}, DType::kBf16), w2 = bench.tensor({z.hidden, ffn}, DType::kBf16);
    const Tensor h = bench.tensor({z.tokens, ffn}, DType::kBf16), y = bench.tensor({z.tokens, ffn}, DType::kBf16);
    const Gemm forward = bench.ready(Gemm{.a = x, .b = w, .c = h, .transpose_b = true, .bias = bias});
    Gemm plain = forward, fused = forward;
    plain.bias = {};
    fused.c = y, fused.pre_activation = h;
    const Gemm backward = bench.ready(Gemm{.a = x, .b = w2, .c = y});
    Gemm fused_backward = backward;
    fused_backward.gelu_input = h;
    return std::vector<Way>{{"fc1 GEMM", plain},
                            {"fc1 GEMM with bias", forward},
                            {"fc1 GEMM with bias, GELU", forward, true, false},
                            {"fc1 GEMM with bias and GELU", fused},
                            {"fc2 dgrad GEMM", backward},
                            {"fc2 dgrad GEMM, dGELU", backward, false, true},
                            {"fc2 dgrad GEMM with dGELU", fused_backward}};
  };
  for (const Way& way : ways()) run(stream, way.gemm);
  bench.synchronize();
  tune(stream, *table, bench.rest());
  const std::vector<Way> all = ways();
  std::vector<Workbench::Call> calls;
  for (const Way& way : all) {
    check(way.gemm);
    const Tensor h = all[0].gemm.c, y = all[4].gemm.c;
    calls.emplace_back([&stream, way, h, y] { run_way(stream, way, h, y); });
  }
  const std::vector<double> seconds = bench.seconds(calls);
  const double flops = 2.0 * static_cast<double>(z.tokens) * static_cast<double>(z.hidden * ffn);
  for (std::size_t i = 0; i < all.size(); ++i) {
    fmt::print("{:10} T {:5} {:30} {:8.1f} us {:7.1f} TFLOP/s\n", z.model, z.tokens, all[i].name, 1e6 * seconds[i],
               1e-12 * flops / seconds[i]);
  }
}

void bench_bias_gradients(Workbench& bench, const Sizes& z) {
  CudaStream& stream = bench.stream();
  for (const std::int64_t columns : {z.hidden, 3 * z.hidden, 4 * z.hidden}) {
    bench.reset();
    const Tensor dy = bench.tensor({z.tokens, columns}, DType::kBf16), copy = bench.tensor(dy.shape, DType::kBf16);
    const Tensor out = bench.tensor({columns}, DType::kFp32);
    const ReduceRows op = bench.ready(ReduceRows{.sums = {{.x = dy, .out = out}}, .accumulate = true});
    check(op);
    const auto bytes = static_cast<std::size_t>(dy.bytes());
    const std::vector<double> seconds =
        bench.seconds({[&] { run(stream, op); }, [&] { stream.copy(copy.data, dy.data, bytes); }});
    fmt::print("{:10} T {:5} bias gradient of {:5} columns {:8.1f} us {:5.0f} GB/s, copy {:5.0f} GB/s\n", z.model,
               z.tokens, columns, 1e6 * seconds[0], 1e-9 * static_cast<double>(bytes) / seconds[0],
               2e-9 * static_cast<double>(bytes) / seconds[1]);
  }
}

}  // namespace
}  // namespace megalith::bench

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  using namespace megalith;
  return bench::bench_main("cuda_epilogue_bench", [] {
    bench::Workbench workbench;
    const auto table = make_gemm_algorithms(workbench.stream(), GemmChoice::kMeasured);
    use_gemm_algorithms(workbench.stream(), table);
    for (const bench::Sizes& z : bench::kSizes) bench::bench_gelu(workbench, table, z);
    for (const bench::Sizes& z : bench::kSizes) bench::bench_bias_gradients(workbench, z);
  });
}
