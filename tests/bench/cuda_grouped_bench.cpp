// The ops of a mixture of experts on the GPU: grouped products, and a complete layer forward and backward.
//   build/PRESET/tests/cuda_grouped_bench [qwen3 | mixtral | small] [balanced | zipf]
// Each token chooses the K experts of the highest log p_e + Gumbel noise, with p uniform or p_e = 1 / e. FLOPs are
// algorithmic: 2 R d n a matrix, 6 forward and 12 backward for a layer. Each call is repeated for kWarmUp milliseconds,
// then measured for kWindow. After other work, such as drawing rows, the clock needs up to 200 to settle. LayerMemory
// (tests/support/expert_layer.h) gives the memory.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "core/device/cuda_device.h"
#include "tests/bench/cuda_workbench.h"
#include "tests/support/expert_layer.h"
#include "tests/support/op_cases.h"

namespace megalith::bench {
namespace {

constexpr double kWarmUp = 250, kWindow = 60;  // ms

struct Layer {
  const char* name;
  test::ExpertSizes sizes;
  double rows() const { return static_cast<double>(sizes.tokens * sizes.choices); }
  double unit() const { return 2 * rows() * static_cast<double>(sizes.hidden * sizes.ffn); }  // FLOPs of one matrix
};

class GroupedBench : public Workbench {
 public:
  GroupedBench(const Layer& layer, bool zipf)
      : l_(layer),
        zipf_(zipf),
        m_(layer.sizes, [this](const Shape& shape, DType dtype) { return tensor(shape, dtype, false); }),
        workspace_(tensor({256}, DType::kUint8, false)) {
    route();
    for (const Tensor& x : {m_.x, m_.d_out, m_.rows}) fill(x, 1);
    const auto deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(l_.sizes.hidden)));
    for (const Tensor& matrix : {m_.gate, m_.up, m_.down}) fill(matrix, deviation);
    for (const Tensor& grad : {m_.d_gate, m_.d_up, m_.d_down}) stream().fill(grad.data, 0, grad.bytes());
  }

  template <class Op>
  void go(const Op& op) {
    if constexpr (HasWorkspace<Op>) {
      run(stream(), with_workspace(op, DeviceType::kCuda, [this](std::int64_t) { return workspace_; }));
    } else {
      run(stream(), op);
    }
  }
  void forward() {
    m_.forward([this](const auto& op) { go(op); });
  }
  void backward() {
    m_.backward([this](const auto& op) { go(op); });
  }

  void measure(const char* what, double flops, double bytes, const Call& call) {
    const double once = seconds(call);
    const auto repeats_of = [&](double ms) { return std::max(3, static_cast<int>(ms * 1e-3 / once)); };
    const int repeats = repeats_of(kWindow);
    for (int i = repeats_of(kWarmUp); i > 0; --i) call();
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
    const double u = l_.unit(), r = l_.rows(), d = static_cast<double>(l_.sizes.hidden);
    const auto t = static_cast<double>(l_.sizes.tokens);
    const test::LayerMemory memory = test::memory_of(l_.sizes);
    fmt::print("{:<8} {:<8} {:.0f} kept bytes a token, transient peak over kept {:.2f}\n", l_.name,
               zipf_ ? "zipf" : "balanced", static_cast<double>(memory.kept) / t,
               static_cast<double>(memory.peak) / static_cast<double>(memory.kept));
    forward();
    backward();
    measure("layer", 9 * u, 0, [&] { forward(), backward(); });
    measure("forward", 3 * u, 0, [&] { forward(); });
    measure("backward", 6 * u, 0, [&] { backward(); });
    // The products alone, rows in memory, as a peer's grouped products have them.
    const test::ExpertSizes& s = l_.sizes;
    const test::GroupedCase plain{.rows = s.tokens * s.choices, .k = s.hidden, .n = s.ffn, .experts = s.experts};
    const auto measure_plain = [&, used = used_](const char* what, const auto& op) {
      measure(what, 2 * u, 0, [&] { go(op); });
      used_ = used;
    };
    measure_plain("fwd product", test::grouped_gemm(*this, plain, m_.offsets));
    measure_plain("dgrad product", test::grouped_data_gradient(*this, plain, m_.offsets));
    measure_plain("wgrad product", test::grouped_weight_gradient(*this, plain, m_.offsets));
    measure("fc1 gathered, swiglu", 2 * u, 0, [&] { go(m_.fc1()); });
    measure("fc2", u, 0, [&] { go(m_.fc2()); });
    measure("dgrad fc2, d_swiglu", u, 0, [&] { go(m_.fc2_dgrad()); });
    measure("wgrad fc2 gathered", u, 0, [&] { go(m_.fc2_wgrad()); });
    measure("wgrad fc1 gathered", 2 * u, 0, [&] { go(m_.fc1_wgrad()); });
    measure("wgrad fc1 overwritten", 2 * u, 0, [&] {
      GroupedGemmWgrad op = m_.fc1_wgrad();
      op.accumulate = false;
      go(op);
    });
    measure("combine", 0, (r + t) * d * 2, [&] { go(m_.combine(m_.out)); });
    measure("gather", 0, 2 * r * d * 2,
            [&] { go(PermuteRows{.x = m_.x, .index = m_.token, .offsets = m_.offsets, .y = m_.rows}); });
    measure("router_topk", 0, 0, [&] { go(m_.router()); });
    measure("expert_offsets", 0, 0, [&] { go(m_.sort()); });
    measure("both", 0, 0, [&] { go(m_.router()), go(m_.sort()); });
  }

 private:
  void fill(const Tensor& x, float deviation) {
    const std::int64_t count = x.numel();
    go(FillNormal{.x = x.view({1, count}), .numbers = {.seed = ++drawn_, .std = deviation}, .pitch = count});
  }
  void route() {
    const std::int64_t t = l_.sizes.tokens, e = l_.sizes.experts;
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(1e-12, 1);
    std::vector<float> values(static_cast<std::size_t>(t * e));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double p = zipf_ ? 1.0 / static_cast<double>(i % static_cast<std::size_t>(e) + 1) : 1.0;
      values[i] = static_cast<float>(std::log(p) - std::log(-std::log(uniform(random))));
    }
    stream().copy(m_.logits.data, values.data(), m_.logits.bytes());
    synchronize();
  }

  Layer l_;
  bool zipf_;
  test::ExpertLayer m_;
  Tensor workspace_;  // for each product in turn
  std::uint64_t drawn_ = 0;
  std::vector<cudaEvent_t> marks_;
};

void bench_all(std::string_view only, std::string_view routing) {
  const Layer qwen3{"qwen3", {32768, 2048, 768, 128, 8}}, mixtral{"mixtral", {32768, 4096, 14336, 8, 2}};
  for (const bool zipf : {false, true}) {
    if (!routing.empty() && (routing == "zipf") != zipf) continue;
    if (only.empty() || only == "qwen3") GroupedBench(qwen3, zipf).all();
    if (only.empty() || only == "mixtral") GroupedBench(mixtral, zipf).all();
    if (!only.empty() && only != "small") continue;
    for (const std::int64_t tokens : {4096, 1024}) {
      Layer layer = qwen3;
      layer.sizes.tokens = tokens;
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
