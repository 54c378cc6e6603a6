// GB/s of the memory-bound ops on the GPU at the sizes of the models in configs/.
//   build/PRESET/tests/cuda_ops_bench [part of an op's name]
// Bytes are those that an op declares to read and write. They are compared with a device copy of 1 GiB (`copy`), and
// with a copy of as many bytes as the op moves (`same`), both measured in the same run. Figures are medians. Each run
// first flushes L2 by reading, so that no dirty lines need a write-back.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/cuda_stream.h"
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
#include "tests/bench/cuda_workbench.h"
#include "tests/support/op_cases.h"

namespace megalith::bench {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 30;
constexpr DType kBf16 = DType::kBf16, kFp32 = DType::kFp32;

class OpBench : public Workbench {
 public:
  explicit OpBench(std::string_view filter) : filter_(filter) {
    const Tensor flush(block_, kFp32, {static_cast<std::int64_t>(kFlushBytes / sizeof(float))});
    run(stream_, Fill{.x = flush, .value = 1});
    SquaredTensor flushed{.x = flush};
    flushed.pieces = tensor({flushed.num_pieces()}, DType::kFp64, false);
    flushing_ = SumOfSquares{.tensors = {flushed}};
    reserved_ = used_;
    copy_speed_ = copy_bytes_per_second(kCopyBytes);
    fmt::print("copy of {} MiB: {:.0f} GB/s read and written\n", kCopyBytes >> 20, 1e-9 * copy_speed_);
    fmt::print("{:52} {:>9} {:>8} {:>7} {:>7}\n", "op", "us", "GB/s", "% copy", "% same");
  }

  // Whether the case is selected; frees the memory of the preceding one.
  bool begin(std::string_view name) {
    used_ = reserved_;
    return name.find(filter_) != std::string_view::npos;
  }

  template <class Op>
  void measure(std::string_view shape, const Op& given) {
    check(given);
    const Op op = ready(given);
    Access accesses(Op::kName);
    access(op, accesses);
    const auto bytes = static_cast<double>(accesses.moved_bytes());
    const double time = flushed_seconds([&] { run(stream_, op); });
    const double same = copy_bytes_per_second(static_cast<std::size_t>(bytes / 2));
    fmt::print("{:52} {:9.1f} {:8.0f} {:7.1f} {:7.1f}\n", fmt::format("{} {}", Op::kName, shape), 1e6 * time,
               1e-9 * bytes / time, 100 * bytes / time / copy_speed_, 100 * bytes / time / same);
  }

  template <class Op>
  void measure_host(const Op& given) {
    const Op op = ready(given);
    fmt::print("host time of {}: {:.2f} us\n", Op::kName, host_microseconds([&] { run(stream_, op); }));
  }

 private:
  // Median seconds; each run first flushes L2 by reading.
  double flushed_seconds(const Call& enqueue) {
    std::vector<double> times;
    for (int i = -kWarmUps; i < kRuns; ++i) {
      run(stream_, flushing_);
      start_.record(stream_);
      enqueue();
      end_.record(stream_);
      end_.wait_on_host();
      if (i >= 0) times.push_back(end_.seconds_since(start_));
    }
    std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
    return times[kRuns / 2];
  }

  // Copies from the front of the block to its end, outside of the cases' tensors.
  double copy_bytes_per_second(std::size_t bytes) {
    std::byte* const to = block_ + kMemoryBytes - bytes;
    return 2 * static_cast<double>(bytes) / flushed_seconds([&] { stream_.copy(to, block_, bytes); });
  }

  std::string filter_;
  std::size_t reserved_ = 0;
  CudaEvent start_{true}, end_{true};
  SumOfSquares flushing_;
  double copy_speed_ = 0;
};

struct Model {
  const char* name;
  std::int64_t tokens, hidden, ffn, vocabulary, loss_rows;
  bool gpt2;
};

constexpr Model kModels[] = {{"gpt2_124m", 65536, 768, 3072, 50304, 16384, true},
                             {"gpt2_1.5b", 16384, 1600, 6400, 50304, 16384, true},
                             {"llama_1b", 32768, 2048, 8192, 128256, 8192, false},
                             {"qwen2.5_7b", 16384, 3584, 18944, 152064, 4096, false}};

std::string title(const Model& m, std::int64_t rows, std::int64_t columns, DType dtype) {
  return fmt::format("{} [{}, {}] {}", m.name, rows, columns, name_of(dtype));
}

void bench_norms(OpBench& bench, const Model& m, DType dtype) {
  const test::NormCase norm{.rows = m.tokens, .columns = m.hidden, .dtype = dtype};
  const std::string name = title(m, m.tokens, m.hidden, dtype);
  if (bench.begin("norm_forward")) {
    if (m.gpt2) bench.measure(name, layer_norm_forward(bench, norm));
    if (!m.gpt2) bench.measure(name, rms_norm_forward(bench, norm));
  }
  if (bench.begin("norm_backward")) {
    if (m.gpt2) bench.measure(name, layer_norm_backward(bench, norm));
    if (!m.gpt2) bench.measure(name, rms_norm_backward(bench, norm));
  }
}

void bench_activation(OpBench& bench, const Model& m, DType dtype) {
  test::ActivationCase act{.rows = m.tokens, .columns = m.ffn, .dtype = dtype};
  const std::string name = title(m, m.tokens, m.ffn, dtype);
  if (m.gpt2 && bench.begin("gelu")) {
    bench.measure(name, gelu_forward(bench, act));
    bench.measure(name, gelu_backward(bench, act));
  }
  if (!m.gpt2 && bench.begin("swiglu")) {
    bench.measure(name, swiglu_forward(bench, act));
    bench.measure(name, swiglu_backward(bench, act));
    act.again = true;
    bench.measure(name + ", again", swiglu_backward(bench, act));
  }
}

void bench_loss(OpBench& bench, const Model& m, DType dtype) {
  if (!bench.begin("cross_entropy")) return;
  test::LossCase loss{.rows = dtype == kBf16 ? m.loss_rows : m.loss_rows / 2,
                      .columns = m.vocabulary,
                      .vocabulary = m.gpt2 ? 50257 : m.vocabulary,
                      .dtype = dtype};
  const std::vector<std::int32_t> labels = test::zipf_tokens(loss.rows, loss.vocabulary);
  CrossEntropy op = cross_entropy(bench, loss, labels);
  bench.measure(title(m, loss.rows, m.vocabulary, dtype), op);
  op.write_gradient = false;
  bench.measure(title(m, loss.rows, m.vocabulary, dtype) + " loss only", op);
}

void bench_embedding(OpBench& bench, const Model& m) {
  if (!bench.begin("embedding")) return;
  const test::EmbeddingCase table{
      .rows = m.tokens, .columns = m.hidden, .vocabulary = m.vocabulary, .positions = m.gpt2 ? 1024 : 0};
  const std::vector<std::int32_t> tokens = test::zipf_tokens(m.tokens, m.vocabulary);
  const std::string name = title(m, m.tokens, m.hidden, kBf16);
  bench.measure(name, embedding_forward(bench, table, tokens));
  bench.measure(name, embedding_backward(bench, table, tokens));
}

void bench_rope(OpBench& bench) {
  if (!bench.begin("rope")) return;
  const Tensor fused = bench.tensor({8, 4096, 48, 64}, kBf16), heads = bench.tensor({8, 4096, 32, 64}, kBf16);
  const Tensor q = fused.slice(2, 0, 32), k = fused.slice(2, 32, 8);
  bench.measure("llama_1b q in place [8, 4096, 32, 64] bf16", Rope{.x = q, .y = q, .rotary_dim = 64});
  bench.measure("llama_1b k in place [8, 4096, 8, 64] bf16", Rope{.x = k, .y = k, .rotary_dim = 64});
  bench.measure("llama_1b apart [8, 4096, 32, 64] bf16", Rope{.x = q, .y = heads, .rotary_dim = 64});
}

void bench_elementwise(OpBench& bench, const Model& m) {
  if (!bench.begin("add cast copy dropout fill")) return;
  const Shape shape{m.tokens, 4 * m.hidden};
  const std::string name = title(m, m.tokens, 4 * m.hidden, kBf16);
  const Tensor a = bench.tensor(shape, kBf16), b = bench.tensor(shape, kBf16), y = bench.tensor(shape, kBf16);
  const Tensor wide = bench.tensor(shape, kFp32);
  bench.measure(name, Add{.a = a, .b = b, .y = y});
  bench.measure(name + " to fp32", CastRows{.x = a, .y = wide});
  bench.measure(name + " from fp32", CastRows{.x = wide, .y = a});
  bench.measure(name, Copy{.src = a, .dst = b});
  bench.measure(name + " rows", Copy{.src = a.slice(1, 0, m.hidden), .dst = b.slice(1, m.hidden, m.hidden)});
  bench.measure(name, Fill{.x = wide, .value = 0});
  const MicrobatchParameters* parameters = bench.structure(MicrobatchParameters{.iteration = 3, .first_sample = 64});
  for (const auto& [x, z] : {std::pair{a, b}, std::pair{wide, wide}}) {
    bench.measure(title(m, m.tokens, 4 * m.hidden, x.dtype),
                  Dropout{.x = x, .y = z, .p = 0.1f, .seed = 5, .rows_per_sample = 1024, .parameters = parameters});
  }
}

void bench_reductions(OpBench& bench) {
  if (!bench.begin("reduce")) return;
  for (const auto& [rows, columns] : {std::pair{65536, 768}, {65536, 3072}, {16384, 1600}, {16384, 6400}}) {
    const Tensor x = bench.tensor({rows, columns}, kBf16), out = bench.tensor({columns}, kFp32);
    bench.measure(fmt::format("[{}, {}] bf16", rows, columns),
                  ReduceRows{.sums = {{.x = x, .out = out}}, .accumulate = true});
  }
  const Tensor partial = bench.tensor({norm_partials(DeviceType::kCuda), 2048}, kFp32),
               out = bench.tensor({2048}, kFp32);
  bench.measure("[264, 2048] fp32", ReduceRows{.sums = {{.x = partial, .out = out}}, .accumulate = true});
  const Tensor losses = bench.tensor({65536}, kFp32);
  bench.measure("[65536]", ReduceToScalar{.x = losses, .out = out.slice(0, 0, 1), .accumulate = true});
}

// The parameters of `layers` blocks and a vocabulary, cut like the optimizer's: matrices and the parameters in between.
std::vector<std::int64_t> parameter_sizes(const Model& m, std::int64_t layers) {
  std::vector<std::int64_t> sizes = {m.vocabulary * m.hidden};
  for (std::int64_t i = 0; i < layers; ++i) {
    sizes.insert(sizes.end(), {m.hidden, 2 * m.hidden * m.hidden, m.hidden, m.hidden * m.hidden, m.hidden,
                               (m.gpt2 ? 1 : 2) * m.ffn * m.hidden, m.ffn, m.ffn * m.hidden});
  }
  return sizes;
}

// Dtypes of the parameter, and of gradient and moments.
void bench_update(OpBench& bench, const char* name, const std::vector<std::int64_t>& sizes, DType type, DType state) {
  const StepParameters* step =
      bench.structure(StepParameters{.iteration = 10, .learning_rate = 1e-4f, .adam_count = 1000});
  std::int64_t count = 0;
  for (const std::int64_t size : sizes) count += (size + 127) / 128 * 128;
  const Tensor w = bench.tensor({count}, kFp32), g = bench.tensor({count}, state), m = bench.tensor({count}, state);
  const Tensor v = bench.tensor({count}, state, false), param = type == kFp32 ? w : bench.tensor({count}, type);
  run(bench.stream(), Fill{.x = v, .value = 1e-3});
  AdamW op{.ranges = {}, .parameters = step};
  SumOfSquares squares;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    const auto part = [&](const Tensor& t) { return t.slice(0, begin, size); };
    op.ranges.push_back({.param = part(param),
                         .main_param = part(w),
                         .grad = part(g),
                         .exp_avg = part(m),
                         .exp_avg_sq = part(v),
                         .weight_decay = op.ranges.size() % 2 == 0 ? 0.1 : 0.0});
    squares.tensors.push_back({.x = part(g)});
    squares.tensors.back().pieces = bench.tensor({squares.tensors.back().num_pieces()}, DType::kFp64, false);
    begin += (size + 127) / 128 * 128;
  }
  const std::string title =
      fmt::format("{} {} M in {} {}, state {}", name, count >> 20, sizes.size(), name_of(type), name_of(state));
  bench.measure(title, op);
  bench.measure(title, squares);
}

void bench_optimizer(OpBench& bench) {
  const auto measure = [&](const char* name, const std::vector<std::int64_t>& sizes) {
    for (const auto& [type, state] : {std::pair{kBf16, kFp32}, {kBf16, kBf16}, {kFp32, kFp32}}) {
      if (bench.begin("adamw sum_of_squares grad_norm")) bench_update(bench, name, sizes, type, state);
    }
  };
  measure("one", {std::int64_t{768} * 768});
  measure("one", {std::int64_t{512} << 20});
  measure(kModels[0].name, parameter_sizes(kModels[0], 12));
  measure("qwen2.5_7b / 7", parameter_sizes(kModels[3], 2));
  measure("llama_1b / 2", parameter_sizes(kModels[2], 8));
  if (!bench.begin("adamw sum_of_squares grad_norm")) return;
  StepParameters* const step = bench.structure(StepParameters{});
  const Tensor sums = bench.tensor({400}, DType::kFp64, false);
  run(bench.stream(), Fill{.x = sums, .value = 1});
  bench.measure("[400]",
                GradNormFinalize{.sums = sums, .loss = bench.tensor({1}, kFp32), .clip_grad = 1, .parameters = step});
}

void bench_sampling(OpBench& bench) {
  if (!bench.begin("sampling")) return;
  const Tensor logits = bench.tensor({8, 128256}, kBf16), out = bench.tensor({8}, DType::kInt32, false);
  Sample op{
      .logits = logits, .vocab_size = 128256, .seed = 1, .position = bench.structure(std::int32_t{5}), .out = out};
  op.temperature = 0;
  bench.measure("[8, 128256] bf16 greedy", op);
  op.temperature = 1;
  bench.measure("[8, 128256] bf16", op);
  op.top_k = 50, op.top_p = 0.9f;
  bench.measure("[8, 128256] bf16 top_k top_p", op);
}

void bench_host(OpBench& bench) {
  if (!bench.begin("host")) return;
  const test::NormCase norm{.rows = 64, .columns = 768, .residual = false};
  bench.measure_host(gelu_forward(bench, test::ActivationCase{.rows = 64, .columns = 768}));
  bench.measure_host(layer_norm_forward(bench, norm));
  bench.measure_host(layer_norm_backward(bench, norm));
  bench.measure_host(embedding_backward(bench, test::EmbeddingCase{.rows = 64, .columns = 768, .vocabulary = 1000},
                                        test::zipf_tokens(64, 1000)));
}

void bench_all(std::string_view filter) {
  OpBench bench(filter);
  for (const Model& m : kModels) {
    bench_norms(bench, m, kBf16);
    bench_activation(bench, m, kBf16);
    bench_loss(bench, m, kBf16);
    bench_embedding(bench, m);
  }
  Model more_tokens = kModels[1];
  more_tokens.tokens *= 2;
  bench_norms(bench, more_tokens, kBf16);
  bench_norms(bench, kModels[0], kFp32);
  bench_norms(bench, kModels[2], kFp32);
  bench_activation(bench, kModels[0], kFp32);
  bench_activation(bench, kModels[2], kFp32);
  bench_loss(bench, kModels[0], kFp32);
  bench_rope(bench);
  bench_elementwise(bench, kModels[0]);
  bench_reductions(bench);
  bench_optimizer(bench);
  bench_sampling(bench);
  bench_host(bench);
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) {
  using namespace megalith::bench;
  return bench_main("cuda_ops_bench", [&] { bench_all(argc > 1 ? argv[1] : ""); });
}
