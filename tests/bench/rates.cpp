// Measures a machine's rates for plan --rates (parallel/cost/rates.h) and prints them in that file's format.
//   [mpirun -np N] rates [--device cpu|cuda] [--name TEXT] [--only copies]      tests/bench/rates.sh builds and runs it
// With N > 1 the ranks of this host measure their link. Rates that cannot be measured here (a link with N = 1, the
// network) are printed and marked as guesses. bf16, the model's dtype; on the CPU smaller sizes.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device/copy.h"
#include "core/device/event.h"
#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/norm/norm.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"
#include "core/ops/token/embedding.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "tests/bench/rates_bench.h"
#include "tests/bench/rates_copies.h"
#include "tests/distributed/rank_device.h"
#include "tests/support/op_cases.h"

namespace {

using namespace megalith;
std::string list_of(const std::vector<double>& values) { return fmt::format("[{:.4g}]", fmt::join(values, ", ")); }

// Seconds of nearly empty ops (configs/rates).
struct Overheads {
  double kernel = 0, graph_kernel = 0;
  double launch = 0, graph_launch = 0;                 // on the host
  std::vector<std::pair<std::string, double>> starts;  // key: op; in a graph, without its kernel; the first is a copy
  double start_of(std::string_view op) const {
    const auto found = std::ranges::find(starts, op, &std::pair<std::string, double>::first);
    return found == starts.end() ? starts.front().second : found->second;
  }
  // Part of a call's seconds in a graph that grows with the work.
  double work_of(std::string_view op, double seconds) const {
    constexpr double kLeast = 0.1;  // the rest is noise
    return std::max(seconds - graph_kernel - start_of(op), kLeast * seconds);
  }
};

// The mean rate of a layer's three products, which differ in transposes and in fp32 accumulation.
void print_gemm(Bench& bench, const Overheads& overheads) {
  std::vector<double> sizes, rates;
  const std::vector<std::int64_t> sides = bench.is_cuda()
                                              ? std::vector<std::int64_t>{768, 1024, 2048, 4096, 8192, 12288}
                                              : std::vector<std::int64_t>{32, 64, 128, 256, 512, 1024};
  for (const std::int64_t side : sides) {
    bench.reset();
    const Shape square{side, side};
    const Tensor a = bench.tensor(square, DType::kBf16), b = bench.tensor(square, DType::kBf16),
                 c = bench.tensor(square, DType::kBf16), sum = bench.tensor(square, DType::kFp32);
    const Gemm forward{.a = a, .b = b, .c = c, .transpose_b = true};
    const double time = bench.seconds_of(forward) + bench.seconds_of(Gemm{.a = a, .b = b, .c = c}) +
                        bench.seconds_of(Gemm{.a = a, .b = b, .c = sum, .transpose_a = true, .accumulate = true});
    sizes.push_back(static_cast<double>(side));
    rates.push_back(flops_of(forward) / overheads.work_of(Gemm::kName, time / 3) * 1e-12);
  }
  fmt::print("gemm-size = {}\ngemm-tflops = {}\n", list_of(sizes), list_of(rates));
}

void print_attention(Bench& bench) {
  std::vector<double> widths, lengths, forwards, backwards;
  const std::int64_t tokens = bench.is_cuda() ? 32'768 : 1024;
  for (const std::int64_t width : {64, 128}) {
    for (const std::int64_t length : {tokens / 32, tokens / 8, tokens / 4}) {
      bench.reset();
      const std::int64_t heads = (bench.is_cuda() ? 2048 : 256) / width;
      const test::AttentionOpCase attention{.samples = tokens / length,
                                            .tokens = length,
                                            .heads = heads,
                                            .kv_heads = heads,
                                            .dim = width,
                                            .fused = false};
      const AttentionForward forward = attention_forward(bench, attention);
      const AttentionBackward backward = attention_backward(bench, attention, forward);
      widths.push_back(static_cast<double>(width));
      lengths.push_back(static_cast<double>(length));
      forwards.push_back(flops_of(forward) / bench.seconds_of(forward) * 1e-12);
      backwards.push_back(flops_of(backward) / bench.seconds_of(backward) * 1e-12);
    }
  }
  fmt::print(
      "attention-width = {}\nattention-length = {}\nattention-forward-tflops = {}\nattention-backward-tflops = {}\n",
      list_of(widths), list_of(lengths), list_of(forwards), list_of(backwards));
}

// Ops that memory binds, by name: their seconds and how many bytes they move.
class Kernels {
 public:
  struct Sizes {
    std::int64_t tokens, width, vocabulary;
  };
  Kernels(Bench& bench, const Sizes& sizes)
      : bench_(bench), tokens_(sizes.tokens), width_(sizes.width), vocabulary_(sizes.vocabulary) {}

  struct Measured {
    std::string name;
    double seconds, bytes;
  };
  std::vector<Measured> measure() {  // the first is a copy
    bench_.reset();
    add(Copy{.src = rows(width_), .dst = rows(width_)});
    norms();
    losses();
    others();
    return std::exchange(measured_, {});
  }
  // Measures ops whose rates depend on more than bytes.
  std::vector<Measured> measure_starts() {
    bench_.reset();
    const Tensor x = rows(width_), y = rows(width_);
    add(Gemm{.a = x, .b = bench_.tensor({width_, width_}, DType::kBf16), .c = y});
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(tokens_));
    std::iota(tokens.begin(), tokens.end(), 0);
    const test::EmbeddingCase table{.rows = tokens_, .columns = width_, .vocabulary = tokens_};
    add(embedding_backward(bench_, table, tokens));
    constexpr std::int64_t kWidth = 64;
    const test::AttentionOpCase attention{.samples = 1,
                                          .tokens = tokens_,
                                          .heads = width_ / kWidth,
                                          .kv_heads = width_ / kWidth,
                                          .dim = kWidth,
                                          .fused = false};
    const AttentionForward forward = attention_forward(bench_, attention);
    add(forward);
    add(attention_backward(bench_, attention, forward));
    return std::exchange(measured_, {});
  }

 private:
  Tensor rows(std::int64_t columns) { return bench_.tensor({tokens_, columns}, DType::kBf16); }
  Tensor floats(const Shape& shape) { return bench_.tensor(shape, DType::kFp32); }

  template <class Op>
  void add(const Op& op) {
    measured_.push_back({.name = Op::kName, .seconds = bench_.seconds_of(op), .bytes = bytes_of(op)});
  }

  void norms() {
    bench_.reset();
    const test::NormCase norm{
        .rows = tokens_, .columns = width_, .sums = bench_.is_cuda() ? DeviceType::kCuda : DeviceType::kCpu};
    add(rms_norm_forward(bench_, norm));
    add(rms_norm_backward(bench_, norm));
    add(layer_norm_forward(bench_, norm));
    add(layer_norm_backward(bench_, norm));
    const Tensor x = rows(width_);
    add(ReduceRows{.sums = {{.x = x, .out = floats({width_})}}, .accumulate = true});
  }

  void losses() {
    bench_.reset();
    const std::int64_t tokens = tokens_ / 4;
    const test::LossCase loss{.rows = tokens, .columns = vocabulary_, .vocabulary = vocabulary_, .scale = 1};
    add(cross_entropy(bench_, loss, std::vector<std::int32_t>(static_cast<std::size_t>(tokens))));
  }

  void others() {
    bench_.reset();
    const std::int64_t length = std::min<std::int64_t>(1024, tokens_), head = 64;
    const Tensor x = bench_.tensor({tokens_ / length, length, width_ / head, head}, DType::kBf16);
    add(Rope{.x = x, .y = x, .rotary_dim = head});
    const test::ActivationCase act{.rows = tokens_, .columns = width_};
    add(swiglu_forward(bench_, act));
    add(swiglu_backward(bench_, act));
    add(gelu_forward(bench_, act));
    add(gelu_backward(bench_, act));
    auto* const step = bench_.structure(StepParameters{.adam_count = 1});
    launch(bench_.stream(), WriteStepParameters{.iteration = 1, .learning_rate = 1e-3f, .parameters = step});
    add(AdamW{.ranges = {test::adamw_range(bench_, tokens_ * width_, DType::kBf16, DType::kFp32)}, .parameters = step});
  }

  Bench& bench_;
  std::int64_t tokens_, width_, vocabulary_;
  std::vector<Measured> measured_;
};

Overheads measure_overheads(Bench& bench) {
  constexpr int kLaunches = 500, kReplays = 20;
  Stream& stream = bench.stream();
  const Fill nothing{.x = bench.tensor({8}, DType::kFp32), .value = 0};
  const Fill long_one{.x = bench.tensor({std::int64_t{1} << (bench.is_cuda() ? 30 : 24)}, DType::kFp32), .value = 0};
  const auto host_seconds = [&](int calls, const std::function<void()>& call) {
    return bench.median([&] {
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) call();
      const double seconds = since(start) / calls;
      stream.synchronize();
      return seconds;
    });
  };
  const auto empty = [&] { launch(stream, nothing); };
  Overheads overheads{.graph_kernel = bench.seconds(empty), .launch = host_seconds(kLaunches, empty)};
  overheads.kernel = bench.median([&] {
    Event begin("begin", true), end("end", true);
    for (int i = 0; i < 8; ++i) launch(stream, long_one);  // the host gets ahead during these
    stream.record(begin);
    for (int i = 0; i < kLaunches; ++i) empty();
    stream.record(end);
    stream.synchronize();
    return seconds_between(begin, end) / kLaunches;
  });
  Graph graph("launched");
  bench.capture(graph, 100, empty);
  overheads.graph_launch = host_seconds(kReplays, [&] { graph.replay(stream); });
  const std::int64_t few = bench.is_cuda() ? 256 : 8, narrow = bench.is_cuda() ? 256 : 64;
  Kernels small(bench, {.tokens = few, .width = narrow, .vocabulary = narrow});
  for (const auto& measured : {small.measure(), small.measure_starts()}) {
    for (const auto& [name, seconds, bytes] : measured)
      overheads.starts.emplace_back(name, std::max(0.0, seconds - overheads.graph_kernel));
  }
  return overheads;
}

void print_memory(Bench& bench, const Overheads& overheads) {
  const Kernels::Sizes sizes = bench.is_cuda() ? Kernels::Sizes{.tokens = 32'768, .width = 2048, .vocabulary = 128'256}
                                               : Kernels::Sizes{.tokens = 2048, .width = 512, .vocabulary = 32'000};
  std::vector<std::string> names;
  std::vector<double> rates;
  for (const auto& [name, seconds, bytes] : Kernels(bench, sizes).measure()) {
    names.push_back(name);
    rates.push_back(bytes / overheads.work_of(name, seconds) * 1e-9);
  }
  const double memory = rates.front();
  names.erase(names.begin());
  rates.erase(rates.begin());
  fmt::print("memory-gbps = {:.4g}\nkernel-names = [\"{}\"]\nkernel-gbps = {}\n", memory, fmt::join(names, "\", \""),
             list_of(rates));
}

void print_overheads(const Overheads& overheads) {
  std::vector<std::string> names;
  std::vector<double> starts;
  for (const auto& [name, seconds] : overheads.starts) {
    names.push_back(name);
    starts.push_back(seconds * 1e6);
  }
  const double other = starts.front();
  names.erase(names.begin());
  starts.erase(starts.begin());
  fmt::print("kernel-us = {:.3g}\ngraph-kernel-us = {:.3g}\n", overheads.kernel * 1e6, overheads.graph_kernel * 1e6);
  fmt::print("start-us = {:.3g}\nstart-names = [\"{}\"]\nstart-names-us = {}\n", other, fmt::join(names, "\", \""),
             list_of(starts));
  fmt::print("launch-us = {:.3g}\ngraph-launch-us = {:.3g}\n", overheads.launch * 1e6, overheads.graph_launch * 1e6);
}

// Latency and bandwidth of t = latency + ring bytes / bandwidth, from a small and a large all-reduce.
void print_links(Bench& bench, Communicator& world) {
  double bandwidth = 10e9, latency = 20e-6;
  const char* note = "  # a guess: run it by mpirun with the ranks of a host";
  if (world.size() > 1) {
    note = "";
    bench.reset();
    const std::int64_t large = std::int64_t{1} << (bench.is_cuda() ? 28 : 22), small = large >> 8;
    const Tensor buffer = bench.tensor({large}, DType::kFp32);
    launch(bench.stream(), Fill{.x = buffer, .value = 0});
    const auto measure = [&](std::int64_t count) {
      constexpr int kCalls = 20;
      const Tensor part = buffer.slice(0, 0, count);
      launch(bench.stream(), AllReduce{.group = world, .buffer = part});
      bench.stream().synchronize();
      world.host_barrier();
      const auto start = Clock::now();
      for (int i = 0; i < kCalls; ++i) launch(bench.stream(), AllReduce{.group = world, .buffer = part});
      bench.stream().synchronize();
      double slowest = 0;
      for (const double seconds : world.host_gather(since(start) / kCalls)) slowest = std::max(slowest, seconds);
      return slowest;
    };
    const double of_small = measure(small), of_large = measure(large);
    const double ring = 2.0 * (world.size() - 1) / world.size() * sizeof(float);
    bandwidth = ring * static_cast<double>(large - small) / std::max(of_large - of_small, 1e-9);
    latency = std::max(of_small - ring * static_cast<double>(small) / bandwidth, 1e-7);
  }
  if (world.rank() != 0) return;
  constexpr double kGib = 1024.0 * 1024 * 1024;
  const double host_memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  fmt::print("host-ranks = {}{}\nhost-memory-gib = {:.1f}\nhost-link-gbps = {:.4g}{}\nhost-link-us = {:.3g}{}\n",
             world.size(), note, host_memory / kGib, bandwidth * 1e-9, note, latency * 1e6, note);
  fmt::print(
      "host-link-busy-gbps = {:.4g}  # a guess: gradients' and weights' beside products\n"
      "peer-gbps = {:.4g}  # a guess: what kernels read out of other GPUs' memory\npeer-us = {:.3g}  # a guess\n"
      "unit-copies-gbps = {:.4g}  # a guess: copy engines beside products\n",
      bandwidth * 0.45e-9, bandwidth * 0.75e-9, latency * 0.5e6, bandwidth * 0.65e-9);
  fmt::print("network-gbps = {:.4g}  # a guess: write what a rank has between hosts\nnetwork-us = 20  # a guess\n",
             bandwidth * 0.1e-9);
  fmt::print("overlap-share = 0.9  # a guess: cuda_all_reduce_speed measures it\n");
}

void measure(MpiRuntime& mpi, DeviceType device, const std::string& name, bool copies_only) {
  const std::unique_ptr<Communicator> world = test::world_on(mpi, device);
  const AbortOnUnwind guard(*world);
  Bench bench(device);
  if (copies_only) return print_copies(bench, *world);
  if (world->rank() == 0) {  // only one rank, since a run has one rank per device
    fmt::print("device = \"{}\"\ndevice-memory-gib = {}  # a guess\ndevice-reserve-gib = {}  # a guess\n", name,
               bench.is_cuda() ? 80 : 8, bench.is_cuda() ? 2 : 0.1);
    const Overheads overheads = measure_overheads(bench);
    print_gemm(bench, overheads);
    print_attention(bench);
    print_memory(bench, overheads);
    print_overheads(overheads);
  }
  world->host_barrier();
  print_copies(bench, *world);
  print_links(bench, *world);
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  DeviceType device = default_device();
  std::string name = "this machine";
  bool copies_only = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i], value = argv[i + 1];
    if (flag == "--device") device = value == "cuda" ? DeviceType::kCuda : DeviceType::kCpu;
    if (flag == "--name") name = value;
    if (flag == "--only") copies_only = value == "copies";
  }
  if (!test::select_rank_device(mpi, device)) return test::kSkipped;
  try {
    measure(mpi, device, name, copies_only);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
