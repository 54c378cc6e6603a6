// Measures what plan --rates wants to know of a machine (apps/rates.h) and prints it as such a file.
//   [mpirun -np N] rates [--device cpu|cuda] [--name TEXT]      tests/bench/rates.sh builds and runs it
// With N > 1 the ranks of this host measure their link; what cannot be measured here (the link alone, the network) is
// printed as a guess, and says so. bf16, the model's dtype; on the CPU smaller sizes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/copy.h"
#include "core/device/memory_pool.h"
#include "core/ops/activation.h"
#include "core/ops/adamw.h"
#include "core/ops/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/elementwise.h"
#include "core/ops/fill_normal.h"
#include "core/ops/gemm.h"
#include "core/ops/grad_norm.h"
#include "core/ops/norm.h"
#include "core/ops/reduce.h"
#include "core/ops/rope.h"
#include "parallel/comm/mpi_runtime.h"
#include "tests/distributed/rank_device.h"

namespace {

using namespace megalith;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Bench {
 public:
  explicit Bench(DeviceType device) : device_(device), pool_(device), stream_(device, "bench") {}

  bool is_cuda() const { return device_ == DeviceType::kCuda; }
  Stream& stream() { return stream_; }
  // What is measured next may take the memory again; nothing is given back to the system.
  void reset() {
    for (const auto& [data, bytes] : used_) pool_.free(data);
    used_.clear();
  }
  void* allocate(std::size_t bytes) {
    void* data = pool_.allocate(std::max<std::size_t>(bytes, 1), MemoryCategory::kOther, "bench");
    used_.emplace_back(data, bytes);
    return data;
  }
  // Normal numbers, as weights and activations are: products of zeros would run cooler and faster.
  Tensor tensor(const Shape& shape, DType dtype) {
    Tensor x(nullptr, dtype, shape);
    x.data = allocate(x.bytes());
    if (x.numel() == 0) return x;
    if (dtype == DType::kFp32 || dtype == DType::kBf16) {
      launch(stream_, FillNormal{.x = x.view({1, x.numel()}), .numbers = {.seed = 1}, .pitch = x.numel()});
    } else {
      launch(stream_, Fill{.x = x, .value = 0});
    }
    return x;
  }

  // Of one call on the stream: the median of several rows of calls.
  double seconds(const std::function<void()>& call) {
    constexpr double kRow = 0.05;
    constexpr std::size_t kRows = 7;
    constexpr int kMostCalls = 2000;
    call();
    stream_.synchronize();
    const auto first = Clock::now();
    call();
    stream_.synchronize();
    const int calls = static_cast<int>(std::clamp(kRow / std::max(since(first), 1e-9), 1.0, double{kMostCalls}));
    std::vector<double> rows;
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto start = Clock::now();
      for (int i = 0; i < calls; ++i) call();
      stream_.synchronize();
      rows.push_back(since(start) / calls);
    }
    std::nth_element(rows.begin(), rows.begin() + kRows / 2, rows.end());
    return rows[kRows / 2];
  }
  template <class Op>
  Op ready(const Op& op) {  // with its workspace
    if constexpr (HasWorkspace<Op>) {
      return with_workspace(op, device_, [this](std::int64_t bytes) { return tensor({bytes}, DType::kUint8); });
    } else {
      return op;
    }
  }
  template <class Op>
  double seconds_of(const Op& given) {
    const Op op = ready(given);
    return seconds([&] { launch(stream_, op); });
  }

 private:
  DeviceType device_;
  MemoryPool pool_;
  std::vector<std::pair<void*, std::size_t>> used_;
  Stream stream_;
};

template <class Op>
double flops_of(const Op& op) {
  Access what(Op::kName);
  access(op, what);
  return what.flops();
}

template <class Op>
double bytes_of(const Op& op) {
  Access what(Op::kName);
  access(op, what);
  return static_cast<double>(what.moved_bytes());
}

std::string list_of(const std::vector<double>& values) { return fmt::format("[{:.4g}]", fmt::join(values, ", ")); }

// The mean rate of the three products of a layer, which differ in what is transposed and in what adds up in fp32.
void print_gemm(Bench& bench) {
  std::vector<double> sizes, rates;
  const std::vector<std::int64_t> sides = bench.is_cuda()
                                              ? std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192, 12288}
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
    rates.push_back(3 * flops_of(forward) / time * 1e-12);
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
      const Shape shape{tokens / length, length, heads, width};
      const auto make = [&] { return bench.tensor(shape, DType::kBf16); };
      const Tensor q = make(), k = make(), v = make(), out = make(), d_out = make();
      const Shape rows{tokens / length, heads, length};
      const Tensor lse = bench.tensor(rows, DType::kFp32), delta = bench.tensor(rows, DType::kFp32);
      const float scale = 1 / std::sqrt(static_cast<float>(width));
      const AttentionForward forward{.q = q, .k = k, .v = v, .out = out, .lse = lse, .scale = scale};
      const AttentionBackward backward{.q = q,
                                       .k = k,
                                       .v = v,
                                       .out = out,
                                       .d_out = d_out,
                                       .lse = lse,
                                       .delta = delta,
                                       .dq = make(),
                                       .dk = make(),
                                       .dv = make(),
                                       .scale = scale,
                                       .deterministic = false};
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

class Kernels {
 public:
  explicit Kernels(Bench& bench)
      : bench_(bench), tokens_(bench.is_cuda() ? 32'768 : 2048), width_(bench.is_cuda() ? 2048 : 512) {}

  void print() {
    const Tensor x = rows(width_), y = rows(width_);
    const double memory = add(Copy{.src = x, .dst = y});
    names_.clear();
    rates_.clear();
    norms();
    losses();
    others();
    fmt::print("memory-gbps = {:.4g}\nkernel-names = [\"{}\"]\nkernel-gbps = {}\n", memory, fmt::join(names_, "\", \""),
               list_of(rates_));
  }

 private:
  Tensor rows(std::int64_t columns) { return bench_.tensor({tokens_, columns}, DType::kBf16); }
  Tensor floats(const Shape& shape) { return bench_.tensor(shape, DType::kFp32); }

  template <class Op>
  double add(const Op& op) {
    const double rate = bytes_of(op) / bench_.seconds_of(op) * 1e-9;
    names_.emplace_back(Op::kName);
    rates_.push_back(rate);
    return rate;
  }

  void norms() {
    bench_.reset();
    const Tensor x = rows(width_), y = rows(width_), sum = rows(width_), dy = rows(width_);
    const Tensor weight = bench_.tensor({width_}, DType::kBf16), mean = floats({tokens_}), rstd = floats({tokens_});
    const std::int64_t partials = norm_partials(bench_.is_cuda() ? DeviceType::kCuda : DeviceType::kCpu);
    const Tensor dw = floats({partials, width_}), db = floats({partials, width_});
    add(RmsNormForward{.x = x, .residual = dy, .sum = sum, .weight = weight, .y = y, .rstd = rstd});
    add(RmsNormBackward{
        .dy = dy, .x = x, .weight = weight, .rstd = rstd, .d_residual = sum, .dx = y, .d_weight_partial = dw});
    add(LayerNormForward{
        .x = x, .residual = dy, .sum = sum, .weight = weight, .bias = weight, .y = y, .mean = mean, .rstd = rstd});
    add(LayerNormBackward{.dy = dy,
                          .x = x,
                          .weight = weight,
                          .mean = mean,
                          .rstd = rstd,
                          .d_residual = sum,
                          .dx = y,
                          .d_weight_partial = dw,
                          .d_bias_partial = db});
    add(ReduceRows{.sums = {{.x = x, .out = floats({width_})}}, .accumulate = true});
  }

  void losses() {
    bench_.reset();
    const std::int64_t vocabulary = bench_.is_cuda() ? 128'256 : 32'000, tokens = tokens_ / 4;
    auto* const parameters = static_cast<MicrobatchParameters*>(bench_.allocate(sizeof(MicrobatchParameters)));
    launch(bench_.stream(), WriteMicrobatchParameters{.value = {.loss_scale = 1}, .out = parameters});
    add(CrossEntropy{.logits = bench_.tensor({tokens, vocabulary}, DType::kBf16),
                     .labels = bench_.tensor({tokens}, DType::kInt32),
                     .loss = floats({tokens}),
                     .vocab_size = vocabulary,
                     .write_gradient = true,
                     .parameters = parameters});
  }

  void others() {
    bench_.reset();
    const std::int64_t length = 1024, head = 64;
    const Tensor x = bench_.tensor({tokens_ / length, length, width_ / head, head}, DType::kBf16);
    add(Rope{.x = x, .y = x, .rotary_dim = head});
    const Tensor wide = rows(2 * width_), narrow = rows(width_), other = rows(width_);
    add(SwigluForward{.x = wide, .y = narrow});
    add(SwigluBackward{.x = wide, .dy = narrow, .dx = wide});
    add(GeluForward{.x = narrow, .y = other});
    add(GeluBackward{.x = narrow, .dy = other, .dx = other});
    const std::int64_t count = tokens_ * width_;
    auto* const step = static_cast<StepParameters*>(bench_.allocate(sizeof(StepParameters)));
    const StepParameters start{.adam_count = 1};
    copy_from_host(bench_.stream(), step, &start, sizeof(start));
    bench_.stream().synchronize();
    launch(bench_.stream(), WriteStepParameters{.iteration = 1, .learning_rate = 1e-3f, .parameters = step});
    add(AdamW{.ranges = {{.param = narrow.view({count}),
                          .main_param = floats({count}),
                          .grad = floats({count}),
                          .exp_avg = floats({count}),
                          .exp_avg_sq = floats({count})}},
              .parameters = step});
  }

  Bench& bench_;
  std::int64_t tokens_, width_;
  std::vector<std::string> names_;
  std::vector<double> rates_;
};

void print_launches(Bench& bench) {
  constexpr int kLaunches = 500;
  bench.reset();
  const Tensor x = bench.tensor({8}, DType::kFp32);
  const Fill nothing{.x = x, .value = 0};
  const double kernel = bench.seconds_of(nothing);
  std::vector<double> hosts;
  for (int row = 0; row < 7; ++row) {
    const auto start = Clock::now();
    for (int i = 0; i < kLaunches; ++i) launch(bench.stream(), nothing);
    hosts.push_back(since(start) / kLaunches);
    bench.stream().synchronize();
  }
  std::nth_element(hosts.begin(), hosts.begin() + 3, hosts.end());
  fmt::print("kernel-us = {:.3g}\nlaunch-us = {:.3g}\n", kernel * 1e6, hosts[3] * 1e6);
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
  fmt::print("host-ranks = {}{}\nhost-link-gbps = {:.4g}{}\nhost-link-us = {:.3g}{}\n", world.size(), note,
             bandwidth * 1e-9, note, latency * 1e6, note);
  fmt::print("network-gbps = {:.4g}  # a guess: write what a rank has between hosts\nnetwork-us = 20  # a guess\n",
             bandwidth * 0.1e-9);
  fmt::print("overlap-share = 0.9  # a guess: cuda_all_reduce_speed measures it\n");
}

void measure(MpiRuntime& mpi, DeviceType device, const std::string& name) {
  const std::unique_ptr<Communicator> world = mpi.world(device);
  const AbortOnUnwind guard(*world);
  Bench bench(device);
  if (world->rank() == 0) {  // alone, as a rank of a run is on its device
    fmt::print("device = \"{}\"\ndevice-memory-gib = {}  # a guess\ndevice-reserve-gib = {}  # a guess\n", name,
               bench.is_cuda() ? 80 : 8, bench.is_cuda() ? 2 : 0.1);
    print_gemm(bench);
    print_attention(bench);
    bench.reset();
    Kernels(bench).print();
    print_launches(bench);
  }
  world->host_barrier();
  print_links(bench, *world);
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime mpi(argc, argv);
  DeviceType device = default_device();
  std::string name = "this machine";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i], value = argv[i + 1];
    if (flag == "--device") device = value == "cuda" ? DeviceType::kCuda : DeviceType::kCpu;
    if (flag == "--name") name = value;
  }
  if (!test::select_rank_device(mpi, device)) return test::kSkipped;
  try {
    measure(mpi, device, name);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return 0;
}
