// GB/s of the memory-bound ops on the GPU at the sizes of the models in configs/.
//   build/PRESET/tests/cuda_ops_bench [part of an op's name]
// Bytes are those an op must read plus those it must write. They are compared with a device copy of 1 GiB (`copy`), and
// with a copy of as many bytes as the op moves (`same`), both measured in the same run. Medians; L2 is flushed by
// reading before each run, so that no dirty lines are left to be written back.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/cuda_event.h"
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

  // Token t with a probability proportional to 1 / (t + 1), as in text.
  Tensor zipf_tokens(std::int64_t count, std::int64_t vocabulary) {
    std::vector<std::int32_t> tokens;
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(0, std::log(static_cast<double>(vocabulary)));
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(
          std::min(static_cast<std::int32_t>(std::exp(uniform(random))), static_cast<std::int32_t>(vocabulary)) - 1);
    }
    const Tensor x = tensor({count}, DType::kInt32, false);
    upload(x.data, tokens.data(), x.bytes());
    return x;
  }
  template <class T>
  const T* device_struct(const T& value) {
    const Tensor x = tensor({static_cast<std::int64_t>(sizeof(T))}, DType::kUint8, false);
    upload(x.data, &value, sizeof(T));
    return x.as<const T>();
  }

  // Whether the case is asked for; frees the memory of the one before.
  bool begin(std::string_view name) {
    used_ = reserved_;
    return name.find(filter_) != std::string_view::npos;
  }

  template <class Op>
  void measure(std::string_view shape, const Op& given, double bytes) {
    check(given);
    const Op op = ready(given);
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
  void upload(void* to, const void* from, std::size_t bytes) {
    stream_.copy(to, from, bytes);
    synchronize();
  }

  // The median, L2 flushed by reading before each run.
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

  // From the front of the block to its end, where no case's tensors are.
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

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors) bytes += static_cast<double>(t.bytes());
  return bytes;
}

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
  const Shape shape{m.tokens, m.hidden};
  const std::string name = title(m, m.tokens, m.hidden, dtype);
  const auto random = [&] { return bench.tensor(shape, dtype); };
  const auto vector = [&] { return bench.tensor({m.hidden}, dtype); };
  const auto rows = [&] { return bench.tensor({m.tokens}, kFp32); };
  const auto partial = [&] { return bench.tensor({norm_partials(DeviceType::kCuda), m.hidden}, kFp32, false); };
  if (bench.begin("norm_forward")) {
    const Tensor x = random(), residual = random(), sum = random(), y = random(), weight = vector(), rstd = rows();
    if (m.gpt2) {
      bench.measure(name,
                    LayerNormForward{.x = x,
                                     .residual = residual,
                                     .sum = sum,
                                     .weight = weight,
                                     .bias = vector(),
                                     .y = y,
                                     .mean = rows(),
                                     .rstd = rstd},
                    bytes_of({x, residual, sum, y}));
    } else {
      bench.measure(name,
                    RmsNormForward{.x = x, .residual = residual, .sum = sum, .weight = weight, .y = y, .rstd = rstd},
                    bytes_of({x, residual, sum, y}));
    }
  }
  if (bench.begin("norm_backward")) {
    const Tensor dy = random(), x = random(), d_residual = random(), dx = random(), weight = vector(), rstd = rows();
    if (m.gpt2) {
      bench.measure(name,
                    LayerNormBackward{.dy = dy,
                                      .x = x,
                                      .weight = weight,
                                      .mean = rows(),
                                      .rstd = rstd,
                                      .d_residual = d_residual,
                                      .dx = dx,
                                      .d_weight_partial = partial(),
                                      .d_bias_partial = partial()},
                    bytes_of({dy, x, d_residual, dx}));
    } else {
      bench.measure(name,
                    RmsNormBackward{.dy = dy,
                                    .x = x,
                                    .weight = weight,
                                    .rstd = rstd,
                                    .d_residual = d_residual,
                                    .dx = dx,
                                    .d_weight_partial = partial()},
                    bytes_of({dy, x, d_residual, dx}));
    }
  }
}

void bench_activation(OpBench& bench, const Model& m, DType dtype) {
  const Shape narrow{m.tokens, m.ffn}, wide{m.tokens, 2 * m.ffn};
  const std::string name = title(m, m.tokens, m.ffn, dtype);
  if (m.gpt2 && bench.begin("gelu")) {
    const Tensor x = bench.tensor(narrow, dtype), dy = bench.tensor(narrow, dtype), y = bench.tensor(narrow, dtype);
    bench.measure(name, GeluForward{.x = x, .y = y}, bytes_of({x, y}));
    bench.measure(name, GeluBackward{.x = x, .dy = dy, .dx = y}, bytes_of({x, dy, y}));
  }
  if (!m.gpt2 && bench.begin("swiglu")) {
    const Tensor x = bench.tensor(wide, dtype), dx = bench.tensor(wide, dtype), y = bench.tensor(narrow, dtype);
    bench.measure(name, SwigluForward{.x = x, .y = y}, bytes_of({x, y}));
    bench.measure(name, SwigluBackward{.x = x, .dy = y, .dx = dx}, bytes_of({x, y, dx}));
    bench.measure(name + ", again", SwigluBackward{.x = x, .dy = y, .dx = dx, .y = y}, bytes_of({x, y, dx, y}));
  }
}

void bench_loss(OpBench& bench, const Model& m, DType dtype) {
  if (!bench.begin("cross_entropy")) return;
  const std::int64_t rows = dtype == kBf16 ? m.loss_rows : m.loss_rows / 2;
  const std::int64_t vocabulary = m.gpt2 ? 50257 : m.vocabulary;  // the rest is padding
  const Tensor logits = bench.tensor({rows, m.vocabulary}, dtype), loss = bench.tensor({rows}, kFp32, false);
  CrossEntropy op{.logits = logits,
                  .labels = bench.zipf_tokens(rows, vocabulary),
                  .loss = loss,
                  .vocab_size = vocabulary,
                  .write_gradient = true,
                  .parameters = bench.device_struct(MicrobatchParameters{.loss_scale = 1e-3f})};
  bench.measure(title(m, rows, m.vocabulary, dtype), op, 2 * bytes_of({logits}));
  op.write_gradient = false;
  bench.measure(title(m, rows, m.vocabulary, dtype) + " loss only", op, bytes_of({logits}));
}

void bench_embedding(OpBench& bench, const Model& m) {
  if (!bench.begin("embedding")) return;
  const Tensor tokens = bench.zipf_tokens(m.tokens, m.vocabulary), y = bench.tensor({m.tokens, m.hidden}, kBf16);
  const Tensor table = bench.tensor({m.vocabulary, m.hidden}, kBf16),
               d_table = bench.tensor({m.vocabulary, m.hidden}, kFp32);
  const Tensor positions = m.gpt2 ? bench.tensor({1024, m.hidden}, kBf16) : Tensor();
  const Tensor d_positions = m.gpt2 ? bench.tensor({1024, m.hidden}, kFp32) : Tensor();
  const std::string name = title(m, m.tokens, m.hidden, kBf16);
  bench.measure(
      name, EmbeddingForward{.tokens = tokens, .table = table, .positions = positions, .rows_per_sample = 1024, .y = y},
      bytes_of({y, y}));
  bench.measure(name,
                EmbeddingBackward{
                    .tokens = tokens, .dy = y, .d_table = d_table, .d_positions = d_positions, .rows_per_sample = 1024},
                bytes_of({y}));
}

void bench_rope(OpBench& bench) {
  if (!bench.begin("rope")) return;
  const Tensor fused = bench.tensor({8, 4096, 48, 64}, kBf16), heads = bench.tensor({8, 4096, 32, 64}, kBf16);
  const Tensor q = fused.slice(2, 0, 32), k = fused.slice(2, 32, 8);
  bench.measure("llama_1b q in place [8, 4096, 32, 64] bf16", Rope{.x = q, .y = q, .rotary_dim = 64},
                2 * bytes_of({q}));
  bench.measure("llama_1b k in place [8, 4096, 8, 64] bf16", Rope{.x = k, .y = k, .rotary_dim = 64}, 2 * bytes_of({k}));
  bench.measure("llama_1b apart [8, 4096, 32, 64] bf16", Rope{.x = q, .y = heads, .rotary_dim = 64}, 2 * bytes_of({q}));
}

void bench_elementwise(OpBench& bench, const Model& m) {
  if (!bench.begin("add cast copy dropout fill")) return;
  const Shape shape{m.tokens, 4 * m.hidden};
  const std::string name = title(m, m.tokens, 4 * m.hidden, kBf16);
  const Tensor a = bench.tensor(shape, kBf16), b = bench.tensor(shape, kBf16), y = bench.tensor(shape, kBf16);
  const Tensor wide = bench.tensor(shape, kFp32);
  bench.measure(name, Add{.a = a, .b = b, .y = y}, bytes_of({a, b, y}));
  bench.measure(name + " to fp32", CastRows{.x = a, .y = wide}, bytes_of({a, wide}));
  bench.measure(name + " from fp32", CastRows{.x = wide, .y = a}, bytes_of({a, wide}));
  bench.measure(name, Copy{.src = a, .dst = b}, bytes_of({a, b}));
  bench.measure(name + " rows", Copy{.src = a.slice(1, 0, m.hidden), .dst = b.slice(1, m.hidden, m.hidden)},
                bytes_of({a, b}) / 4);
  bench.measure(name, Fill{.x = wide, .value = 0}, bytes_of({wide}));
  const MicrobatchParameters* parameters =
      bench.device_struct(MicrobatchParameters{.iteration = 3, .first_sample = 64});
  for (const auto& [x, z] : {std::pair{a, b}, std::pair{wide, wide}}) {
    bench.measure(title(m, m.tokens, 4 * m.hidden, x.dtype),
                  Dropout{.x = x, .y = z, .p = 0.1f, .seed = 5, .rows_per_sample = 1024, .parameters = parameters},
                  bytes_of({x, z}));
  }
}

void bench_reductions(OpBench& bench) {
  if (!bench.begin("reduce")) return;
  for (const auto& [rows, columns] : {std::pair{65536, 768}, {65536, 3072}, {16384, 1600}, {16384, 6400}}) {
    const Tensor x = bench.tensor({rows, columns}, kBf16), out = bench.tensor({columns}, kFp32);
    bench.measure(fmt::format("[{}, {}] bf16", rows, columns),
                  ReduceRows{.sums = {{.x = x, .out = out}}, .accumulate = true}, bytes_of({x}));
  }
  const Tensor partial = bench.tensor({norm_partials(DeviceType::kCuda), 2048}, kFp32),
               out = bench.tensor({2048}, kFp32);
  bench.measure("[264, 2048] fp32", ReduceRows{.sums = {{.x = partial, .out = out}}, .accumulate = true},
                bytes_of({partial}));
  const Tensor losses = bench.tensor({65536}, kFp32);
  bench.measure("[65536]", ReduceToScalar{.x = losses, .out = out.slice(0, 0, 1), .accumulate = true},
                bytes_of({losses}));
}

// The parameters of `layers` blocks and a vocabulary, as the optimizer cuts them: matrices and what lies between them.
std::vector<std::int64_t> parameter_sizes(const Model& m, std::int64_t layers) {
  std::vector<std::int64_t> sizes = {m.vocabulary * m.hidden};
  for (std::int64_t i = 0; i < layers; ++i) {
    sizes.insert(sizes.end(), {m.hidden, 2 * m.hidden * m.hidden, m.hidden, m.hidden * m.hidden, m.hidden,
                               (m.gpt2 ? 1 : 2) * m.ffn * m.hidden, m.ffn, m.ffn * m.hidden});
  }
  return sizes;
}

// Dtypes of parameter; of gradient and moments.
void bench_update(OpBench& bench, const char* name, const std::vector<std::int64_t>& sizes, DType type, DType state) {
  const StepParameters* step =
      bench.device_struct(StepParameters{.iteration = 10, .learning_rate = 1e-4f, .adam_count = 1000});
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
  bench.measure(title, op, bytes_of({w, g, m, v, w, m, v}) + (type == kFp32 ? 0 : bytes_of({param})));
  bench.measure(title, squares, bytes_of({g}));
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
  const StepParameters* step = bench.device_struct(StepParameters{});
  const Tensor sums = bench.tensor({400}, DType::kFp64, false);
  run(bench.stream(), Fill{.x = sums, .value = 1});
  bench.measure("[400]",
                GradNormFinalize{.sums = sums,
                                 .loss = bench.tensor({1}, kFp32),
                                 .clip_grad = 1,
                                 .parameters = const_cast<StepParameters*>(step)},
                bytes_of({sums}));
}

void bench_sampling(OpBench& bench) {
  if (!bench.begin("sampling")) return;
  const Tensor logits = bench.tensor({8, 128256}, kBf16), out = bench.tensor({8}, DType::kInt32, false);
  Sample op{
      .logits = logits, .vocab_size = 128256, .seed = 1, .position = bench.device_struct(std::int32_t{5}), .out = out};
  op.temperature = 0;
  bench.measure("[8, 128256] bf16 greedy", op, bytes_of({logits}));
  op.temperature = 1;
  bench.measure("[8, 128256] bf16", op, bytes_of({logits}));
  op.top_k = 50, op.top_p = 0.9f;
  bench.measure("[8, 128256] bf16 top_k top_p", op, bytes_of({logits}));
}

void bench_host(OpBench& bench) {
  if (!bench.begin("host")) return;
  const Tensor x = bench.tensor({64, 768}, kBf16), y = bench.tensor({64, 768}, kBf16),
               weight = bench.tensor({768}, kBf16);
  const Tensor rstd = bench.tensor({64}, kFp32), mean = bench.tensor({64}, kFp32),
               partial = bench.tensor({norm_partials(DeviceType::kCuda), 768}, kFp32);
  bench.measure_host(GeluForward{.x = x, .y = y});
  bench.measure_host(LayerNormForward{.x = x, .weight = weight, .bias = weight, .y = y, .mean = mean, .rstd = rstd});
  bench.measure_host(LayerNormBackward{.dy = x,
                                       .x = x,
                                       .weight = weight,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx = y,
                                       .d_weight_partial = partial,
                                       .d_bias_partial = partial});
  bench.measure_host(
      EmbeddingBackward{.tokens = bench.zipf_tokens(64, 1000), .dy = x, .d_table = bench.tensor({1000, 768}, kFp32)});
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
