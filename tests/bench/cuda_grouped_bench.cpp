// The ops of a mixture of experts on the GPU: grouped products, and a whole layer forward and backward.
//   build/PRESET/tests/cuda_grouped_bench [qwen3 | mixtral | small] [balanced | zipf]
// Routing is drawn: each token takes the K experts of the highest log p_e + Gumbel noise, with p uniform or p_e = 1 /
// e. FLOPs are algorithmic: 2 R d n a matrix, 6 forward and 12 backward for a layer. Each call is repeated for kWindow
// milliseconds before it is measured for as long, so that the clock is that of lasting work.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/ops/grouped_gemm.h"
#include "core/ops/route_rows.h"
#include "core/ops/router.h"
#include "tests/bench/cuda_workbench.h"

namespace megalith::bench {
namespace {

constexpr double kWindow = 60;  // ms

struct Layer {
  const char* name;
  std::int64_t tokens, hidden, ffn, experts, choices;
  double rows() const { return static_cast<double>(tokens * choices); }
  double unit() const { return 2 * rows() * static_cast<double>(hidden * ffn); }  // FLOPs of one matrix
};

class GroupedBench : public Workbench {
 public:
  GroupedBench(const Layer& layer, bool zipf) : l_(layer), zipf_(zipf) {
    const std::int64_t t = l_.tokens, r = t * l_.choices;
    route();
    x = normal({t, l_.hidden}, 1);
    d_out = normal({t, l_.hidden}, 1);
    const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(l_.hidden)));
    gate = normal({l_.experts * l_.ffn, l_.hidden}, deviation);
    up = normal({l_.experts * l_.ffn, l_.hidden}, deviation);
    down = normal({l_.experts * l_.hidden, l_.ffn}, deviation);
    for (Tensor* grad : {&d_gate, &d_up}) *grad = tensor(gate.shape, DType::kFp32, false);
    d_down = tensor(down.shape, DType::kFp32, false);
    for (const Tensor& grad : {d_gate, d_up, d_down}) stream().fill(grad.data, 0, grad.bytes());
    row_weight = tensor({r}, DType::kFp32, false);
    h = tensor({r, 2 * l_.ffn}, DType::kBf16, false);
    act = tensor({r, l_.ffn}, DType::kBf16, false);
    rows = normal({r, l_.hidden}, 1);
    dh = tensor({r, 2 * l_.ffn}, DType::kBf16, false);
    partial = tensor({r, (l_.ffn + 63) / 64}, DType::kFp32, false);
    d_weight = tensor({t, l_.choices}, DType::kFp32, false);
    out = tensor({t, l_.hidden}, DType::kBf16, false);
    dx = tensor({t, l_.hidden}, DType::kBf16, false);
    offsets_op = ready(ExpertOffsets{.choice = choice, .offsets = offsets, .token = token, .position = position});
  }

  void router() { run(stream(), RouterTopk{.logits = logits, .choice = choice, .weight = weight}); }
  void sort() { run(stream(), offsets_op); }
  void fc1() {
    run(stream(), GroupedGemmSwiglu{.a = x,
                                    .index = token,
                                    .offsets = offsets,
                                    .gate = gate,
                                    .up = up,
                                    .row_weight = row_weight,
                                    .h = h,
                                    .y = act});
  }
  void fc2() { run(stream(), GroupedGemm{.a = act, .offsets = offsets, .b = down, .c = rows}); }
  void combine(const Tensor& to) { run(stream(), UnpermuteRows{.x = rows, .position = position, .y = to}); }
  void backward_fc2() {
    run(stream(), GroupedGemmSwigluBackward{.dy = d_out,
                                            .index = token,
                                            .offsets = offsets,
                                            .b = down,
                                            .h = h,
                                            .row_weight = row_weight,
                                            .dh = dh,
                                            .y = act,
                                            .d_row_weight_partial = partial});
  }
  void wgrad_fc2() {
    run(stream(), GroupedGemmWgrad{.a = d_out, .a_index = token, .b = act, .offsets = offsets, .c = d_down});
  }
  void dgrad_fc1() {
    run(stream(), GroupedGemm{.a = dh, .offsets = offsets, .b = gate, .b2 = up, .c = rows, .transpose_b = false});
  }
  void wgrad_fc1() {
    run(stream(), GroupedGemmWgrad{.a = dh, .b = x, .b_index = token, .offsets = offsets, .c = d_gate, .c2 = d_up});
  }
  void forward() {
    router();
    sort();
    run(stream(), PermuteWeights{.weight = weight, .position = position, .row_weight = row_weight});
    fc1();
    fc2();
    combine(out);
  }
  void backward() {
    backward_fc2();
    run(stream(), UnpermuteWeightGradients{.partial = partial, .position = position, .d_weight = d_weight});
    wgrad_fc2();
    dgrad_fc1();
    wgrad_fc1();
    combine(dx);
  }
  // The products alone, rows in memory, as a peer's grouped products have them.
  void draw_rows() { fill(rows, 1); }
  void plain_forward() { run(stream(), GroupedGemm{.a = rows, .offsets = offsets, .b = gate, .b2 = up, .c = h}); }
  void plain_wgrad() {
    run(stream(), GroupedGemmWgrad{.a = dh, .b = rows, .offsets = offsets, .c = d_gate, .c2 = d_up});
  }

  void measure(const char* what, double flops, double bytes, const Call& call) {
    const double once = seconds(call);
    const int repeats = std::max(3, static_cast<int>(kWindow * 1e-3 / once));
    for (int i = 0; i < repeats; ++i) call();
    while (marks_.size() < 2) MEGALITH_CUDA_CHECK(cudaEventCreate(&marks_.emplace_back()));
    MEGALITH_CUDA_CHECK(cudaEventRecord(marks_[0], stream().handle()));
    for (int i = 0; i < repeats; ++i) call();
    MEGALITH_CUDA_CHECK(cudaEventRecord(marks_[1], stream().handle()));
    synchronize();
    float ms = 0;
    MEGALITH_CUDA_CHECK(cudaEventElapsedTime(&ms, marks_[0], marks_[1]));
    const double each = 1e-3 * static_cast<double>(ms) / repeats;
    fmt::print("{:<8} {:<8} {:<22} {:9.1f} us", l_.name, zipf_ ? "zipf" : "balanced", what, each * 1e6);
    if (flops > 0) fmt::print(" {:7.1f} TFLOP/s", flops / each * 1e-12);
    if (bytes > 0) fmt::print(" {:7.2f} TB/s", bytes / each * 1e-12);
    fmt::print("\n");
    std::fflush(stdout);
  }

  void all() {
    const double u = l_.unit(), r = l_.rows(), d = static_cast<double>(l_.hidden);
    const auto t = static_cast<double>(l_.tokens);
    forward();
    backward();
    measure("layer", 9 * u, 0, [&] { forward(), backward(); });
    measure("forward", 3 * u, 0, [&] { forward(); });
    measure("backward", 6 * u, 0, [&] { backward(); });
    draw_rows();
    measure("fwd product", 2 * u, 0, [&] { plain_forward(); });
    measure("dgrad product", 2 * u, 0, [&] { dgrad_fc1(); });
    measure("wgrad product", 2 * u, 0, [&] { plain_wgrad(); });
    measure("fc1 gathered, swiglu", 2 * u, 0, [&] { fc1(); });
    measure("fc2", u, 0, [&] { fc2(); });
    measure("dgrad fc2, d_swiglu", u, 0, [&] { backward_fc2(); });
    measure("wgrad fc2 gathered", u, 0, [&] { wgrad_fc2(); });
    measure("wgrad fc1 gathered", 2 * u, 0, [&] { wgrad_fc1(); });
    measure("combine", 0, (r + t) * d * 2, [&] { combine(out); });
    measure("gather", 0, 2 * r * d * 2,
            [&] { run(stream(), PermuteRows{.x = x, .index = token, .offsets = offsets, .y = rows}); });
    measure("router_topk", 0, 0, [&] { router(); });
    measure("expert_offsets", 0, 0, [&] { sort(); });
    measure("both", 0, 0, [&] { router(), sort(); });
  }

 private:
  void fill(const Tensor& x_, float deviation) {
    run(stream(),
        FillNormal{.x = x_.view({1, x_.numel()}), .numbers = {.seed = used_, .std = deviation}, .pitch = x_.numel()});
  }
  Tensor normal(const Shape& shape, float deviation) {
    const Tensor result = tensor(shape, DType::kBf16, false);
    fill(result, deviation);
    return result;
  }
  void route() {
    const std::int64_t t = l_.tokens, e = l_.experts;
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(1e-12, 1);
    std::vector<float> values(static_cast<std::size_t>(t * e));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double p = zipf_ ? 1.0 / static_cast<double>(i % static_cast<std::size_t>(e) + 1) : 1.0;
      values[i] = static_cast<float>(std::log(p) - std::log(-std::log(uniform(random))));
    }
    logits = tensor({t, e}, DType::kFp32, false);
    stream().copy(logits.data, values.data(), logits.bytes());
    choice = tensor({t, l_.choices}, DType::kInt32, false);
    weight = tensor({t, l_.choices}, DType::kFp32, false);
    offsets = tensor({e + 1}, DType::kInt32, false);
    token = tensor({t * l_.choices}, DType::kInt32, false);
    position = tensor({t, l_.choices}, DType::kInt32, false);
    synchronize();
  }

  Layer l_;
  bool zipf_;
  ExpertOffsets offsets_op;
  std::vector<cudaEvent_t> marks_;
  Tensor logits, choice, weight, offsets, token, position, x, d_out, gate, up, down, d_gate, d_up, d_down, row_weight,
      h, act, rows, dh, partial, d_weight, out, dx;
};

void bench_all(std::string_view only, std::string_view routing) {
  const Layer qwen3{"qwen3", 32768, 2048, 768, 128, 8}, mixtral{"mixtral", 32768, 4096, 14336, 8, 2};
  for (const bool zipf : {false, true}) {
    if (!routing.empty() && (routing == "zipf") != zipf) continue;
    if (only.empty() || only == "qwen3") GroupedBench(qwen3, zipf).all();
    if (only.empty() || only == "mixtral") GroupedBench(mixtral, zipf).all();
    if (!only.empty() && only != "small") continue;
    for (const std::int64_t tokens : {4096, 1024}) {
      Layer layer = qwen3;
      layer.tokens = tokens;
      layer.name = tokens == 4096 ? "T 4096" : "T 1024";
      GroupedBench(layer, zipf).all();
    }
  }
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) {
  using namespace megalith::bench;
  return bench_main("cuda_grouped_bench", [&] { bench_all(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""); });
}
