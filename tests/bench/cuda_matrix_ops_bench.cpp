// TFLOP/s of GEMM and attention on the GPU at the sizes of the models in configs/.
//   build/PRESET/tests/cuda_matrix_ops_bench [gemm|attention|decode]
// GEMM: forward (with a bias if the model has one), data gradient, and weight gradient accumulated into fp32. Each runs
// with cuBLASLt's first and measured algorithm, in percent of an 8192^3 product measured in the same run.
// Attention: causal FLOPs, forward and both backward forms, the host's time to enqueue one, and cuDNN's workspace.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/ops/attention/attention.h"
#include "tests/bench/cuda_workbench.h"
#include "tests/support/op_cases.h"

namespace megalith::bench {
namespace {

using test::AttentionOpCase;
using test::ProductCase;

struct Linear {
  const char* name;
  std::int64_t inputs, outputs;
};

struct Model {
  const char* name;
  std::int64_t tokens;
  bool bias;
  std::vector<Linear> linears;
};

std::vector<Model> models() {
  return {
      {"gpt2_124m",
       65536,
       true,
       {{"qkv", 768, 2304}, {"proj", 768, 768}, {"fc1", 768, 3072}, {"fc2", 3072, 768}, {"head", 768, 50304}}},
      {"gpt2_1.5b",
       16384,
       true,
       {{"qkv", 1600, 4800}, {"proj", 1600, 1600}, {"fc1", 1600, 6400}, {"fc2", 6400, 1600}, {"head", 1600, 50304}}},
      {"llama_1b",
       32768,
       false,
       {{"qkv", 2048, 3072}, {"proj", 2048, 2048}, {"fc1", 2048, 16384}, {"fc2", 8192, 2048}, {"head/4", 2048, 32064}}},
      {"qwen2.5_7b",
       16384,
       false,
       {{"qkv", 3584, 4608},
        {"proj", 3584, 3584},
        {"fc1", 3584, 37888},
        {"fc2", 18944, 3584},
        {"head/4", 3584, 38016}}}};
}

std::vector<ProductCase> products(const Model& model, const Linear& x) {
  const std::string name = fmt::format("{} {}", model.name, x.name);
  const bool head = std::string_view(x.name).starts_with("head");
  return {{name + " forward", model.tokens, x.outputs, x.inputs, false, true, model.bias && !head, false},
          {name + " dgrad", model.tokens, x.inputs, x.outputs},
          {name + " wgrad", x.outputs, x.inputs, model.tokens, true, false, false, true}};
}

Gemm add_gemm(Workbench& bench, const ProductCase& p) { return bench.ready(gemm(bench, p, DType::kBf16)); }

Gemm make_gemm(Workbench& bench, const ProductCase& p) {
  bench.reset();
  return add_gemm(bench, p);
}

double tera_flops(const ProductCase& p) { return 1e-12 * p.flops(); }

void bench_gemm() {
  Workbench bench;
  CudaStream& stream = bench.stream();
  const ProductCase square{"8192^3", 8192, 8192, 8192, false, true};
  const auto firsts = make_gemm_algorithms(stream, GemmChoice::kFirst);
  const auto table = make_gemm_algorithms(stream, GemmChoice::kMeasured);
  fmt::print("{}\n", table->environment());
  fmt::print("{:28} {:>7} {:>7} {:>10} {:>7} {:>8}\n", "GEMM", "first", "chosen", "of 8192^3", "8192^3", "tuning s");
  for (const Model& model : models()) {
    double first_seconds = 0, chosen_seconds = 0;
    for (const Linear& linear : model.linears) {
      for (const ProductCase& p : products(model, linear)) {
        use_gemm_algorithms(stream, table);
        run(stream, make_gemm(bench, p));
        bench.synchronize();
        const auto start = std::chrono::steady_clock::now();
        tune(stream, *table, bench.rest());
        const std::chrono::duration<double> tuning = std::chrono::steady_clock::now() - start;
        const Gemm op = make_gemm(bench, p), limit = add_gemm(bench, square);
        check(op);
        const auto call = [&stream](const Gemm& gemm, const std::shared_ptr<GemmAlgorithms>& algorithms) {
          return [&stream, gemm, algorithms] {
            use_gemm_algorithms(stream, algorithms);
            run(stream, gemm);
          };
        };
        const std::vector<double> seconds = bench.seconds({call(op, firsts), call(op, table), call(limit, firsts)});
        const double best = tera_flops(square) / seconds[2], chosen = tera_flops(p) / seconds[1];
        fmt::print("{:28} {:7.1f} {:7.1f} {:8.1f} % {:7.1f} {:8.2f}\n", p.name, tera_flops(p) / seconds[0], chosen,
                   100 * chosen / best, best, tuning.count());
        first_seconds += seconds[0];
        chosen_seconds += seconds[1];
      }
    }
    fmt::print("{:28} all products, one layer and the head: {:.3f} ms first, {:.3f} ms chosen\n", model.name,
               1e3 * first_seconds, 1e3 * chosen_seconds);
  }
  const Gemm small = make_gemm(bench, {"host", 256, 256, 256, false, true});
  fmt::print("host time of one GEMM call: {:.2f} us\n", bench.host_microseconds([&] { run(stream, small); }));
}

struct Attention {
  AttentionForward forward;
  AttentionBackward backward;
};

Attention make_attention(Workbench& bench, const AttentionOpCase& z) {
  bench.reset();
  const AttentionForward forward = bench.ready(attention_forward(bench, z));
  return {forward, bench.ready(attention_backward(bench, z, forward))};
}

void bench_attention() {
  Workbench bench;
  fmt::print("{:26} {:>8} {:>8} {:>8}   {:>9} {:>9}  {:>6} {:>6}\n", "attention TFLOP/s", "forward", "bwd acc",
             "bwd det", "MiB acc", "MiB det", "fwd us", "bwd us");
  for (AttentionOpCase z : {AttentionOpCase{64, 1024, 12, 12, 64},
                            {4, 4096, 32, 8, 128},
                            {2, 8192, 32, 8, 128},
                            {16, 1024, 25, 25, 64},
                            {8, 4096, 32, 8, 64},
                            {16, 1024, 28, 4, 128}}) {
    const double flops =
        2.0 * static_cast<double>(z.samples * z.heads * z.tokens) * static_cast<double>(z.tokens * z.dim);
    double backward[2], mebibytes[2], forward = 0, forward_host = 0, backward_host = 0;
    for (const bool deterministic : {false, true}) {
      z.deterministic = deterministic;
      const Attention x = make_attention(bench, z);
      check(x.forward);
      check(x.backward);
      forward = 1e-12 * flops / bench.seconds([&] { run(bench.stream(), x.forward); });
      backward[deterministic] = 2.5e-12 * flops / bench.seconds([&] { run(bench.stream(), x.backward); });
      mebibytes[deterministic] = static_cast<double>(x.backward.workspace.bytes()) / (1 << 20);
      if (deterministic) continue;
      forward_host = bench.host_microseconds([&] { run(bench.stream(), x.forward); });
      backward_host = bench.host_microseconds([&] { run(bench.stream(), x.backward); });
    }
    fmt::print("B{} S{} N{}/{} D{:<8} {:8.1f} {:8.1f} {:8.1f}   {:9.1f} {:9.1f}  {:6.1f} {:6.1f}\n", z.samples,
               z.tokens, z.heads, z.kv_heads, z.dim, forward, backward[0], backward[1], mebibytes[0], mebibytes[1],
               forward_host, backward_host);
  }
}

// One token per sample against a full cache: bytes of the cache over time.
void bench_decode() {
  Workbench bench;
  for (const AttentionOpCase& z :
       {AttentionOpCase{1, 4096, 32, 8, 128}, {16, 4096, 32, 8, 128}, {64, 1024, 12, 12, 64}}) {
    bench.reset();
    const Shape cache{z.samples, z.tokens, z.kv_heads, z.dim};
    const Tensor start = bench.tensor({64}, DType::kInt32, false);
    const auto position = static_cast<std::int32_t>(z.tokens - 1);
    bench.stream().copy(start.data, &position, sizeof(position));
    const CachedAttention op{.q = bench.tensor({z.samples, 1, z.heads, z.dim}, DType::kBf16),
                             .k_cache = bench.tensor(cache, DType::kBf16),
                             .v_cache = bench.tensor(cache, DType::kBf16),
                             .out = bench.tensor({z.samples, 1, z.heads, z.dim}, DType::kBf16),
                             .start = start.as<const std::int32_t>(),
                             .scale = 1 / std::sqrt(static_cast<float>(z.dim))};
    check(op);
    const double seconds = bench.seconds([&] { run(bench.stream(), op); });
    fmt::print("decode B{} M{} N{}/{} D{}: {:.1f} us, {:.0f} GB/s of cache\n", z.samples, z.tokens, z.heads, z.kv_heads,
               z.dim, 1e6 * seconds, 2e-9 * static_cast<double>(op.k_cache.bytes()) / seconds);
  }
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  using namespace megalith::bench;
  return bench_main("cuda_matrix_ops_bench", [&] {
    const std::string_view what = argc > 1 ? argv[1] : "";
    if (what.empty() || what == "attention") bench_attention();
    if (what.empty() || what == "decode") bench_decode();
    if (what.empty() || what == "gemm") bench_gemm();
  });
}
