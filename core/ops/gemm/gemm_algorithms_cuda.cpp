#include "core/ops/gemm/gemm_algorithms_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/device/cuda/check.h"
#include "core/device/cuda_stream.h"
#include "core/device/cuda_stream_state.h"
#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/gemm/gemm_problem_cuda.cuh"

namespace megalith {

namespace {

constexpr int kAnswers = 24;           // requested; the library has 6 to 20 of them
constexpr int kFinalists = 5;          // measured again, in turns
constexpr int kRounds = 7;             // measurements per finalist; the median counts
constexpr double kWithin = 1.12;       // a finalist's first time, relative to the fastest
constexpr double kRoundMs = 3;         // repeated calls, to exceed the clock's resolution
constexpr double kFirstStays = 1.005;  // required speedup of a later answer over the first

// Times algorithms on one signature's matrices, which are adjacent in the scratch.
class Measurement {
 public:
  Measurement(CudaStream& stream, const GemmSignature& s, const GemmScratch& scratch)
      : stream_(stream), problem_(s), scratch_(scratch) {
    operands_ = {.a = place(s.input, s.transpose_a ? s.k : s.m, s.stride_a),
                 .b = place(s.input, s.transpose_b ? s.n : s.k, s.stride_b),
                 .c = place(s.output, s.m, s.stride_c),
                 .bias = place(s.output, 1, s.n),
                 .gelu = place(s.output, s.gelu == GemmGelu::kNone ? 0 : s.m, s.n),
                 .workspace = place(DType::kUint8, 1, kGemmWorkspaceBytes)};
  }

  bool fits() const { return used_ <= scratch_.bytes; }

  // Fills with normal numbers: a GPU is faster on zeros and small numbers than on a model's values.
  void fill() {
    for (const Tensor& x : matrices_) {
      if (x.dtype == DType::kUint8) continue;
      run(stream_, FillNormal{.x = x, .numbers = {.seed = ++seed_}, .pitch = x.size(1)});
    }
  }

  std::vector<GemmAlgorithm> answers() { return problem_.answers(stream_, kAnswers); }

  // Returns milliseconds per call over `calls` calls.
  double time(const GemmAlgorithm& algorithm, int calls) {
    start_.record(stream_);
    for (int i = 0; i < calls; ++i) problem_.run(stream_, operands_, algorithm);
    end_.record(stream_);
    end_.wait_on_host();
    return 1e3 * end_.seconds_since(start_) / calls;
  }

 private:
  void* place(DType dtype, std::int64_t rows, std::int64_t stride) {
    constexpr std::size_t kAlignment = 256;
    const Tensor& x =
        matrices_.emplace_back(static_cast<std::byte*>(scratch_.memory) + used_, dtype, Shape{rows, stride});
    used_ += (x.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    return x.data;
  }

  CudaStream& stream_;
  GemmProblem problem_;
  GemmScratch scratch_;
  std::vector<Tensor> matrices_;
  GemmOperands operands_;
  std::size_t used_ = 0;
  std::uint64_t seed_ = 0;
  CudaEvent start_{true}, end_{true};
};

struct Candidate {
  GemmAlgorithm algorithm;
  double ms;
  std::vector<double> rounds = {};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns the first answer, which always stays, and the fastest others.
std::vector<Candidate> finalists(Measurement& measurement) {
  std::vector<Candidate> candidates;
  double fastest = std::numeric_limits<double>::infinity();
  for (const GemmAlgorithm& algorithm : measurement.answers()) {
    measurement.time(algorithm, 1);  // loads the kernel
    candidates.push_back({.algorithm = algorithm, .ms = measurement.time(algorithm, 3)});
    fastest = std::min(fastest, candidates.back().ms);
  }
  const auto slow = [fastest](const Candidate& x) { return x.ms > kWithin * fastest; };
  candidates.erase(std::remove_if(candidates.begin() + 1, candidates.end(), slow), candidates.end());
  std::stable_sort(candidates.begin() + 1, candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.ms < y.ms; });
  if (candidates.size() > kFinalists) candidates.erase(candidates.begin() + kFinalists, candidates.end());
  return candidates;
}

struct Winner {
  GemmAlgorithm algorithm;
  double ms, first_ms;
};

Winner fastest(Measurement& measurement) {
  std::vector<Candidate> candidates = finalists(measurement);
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& x : candidates) {
      const int calls = std::clamp(static_cast<int>(kRoundMs / std::max(x.ms, 1e-3)), 1, 100);
      x.rounds.push_back(measurement.time(x.algorithm, calls));
    }
  }
  for (Candidate& x : candidates) x.ms = median(x.rounds);
  const Candidate& first = candidates.front();
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [](const Candidate& x, const Candidate& y) { return x.ms < y.ms; });
  const Candidate& chosen = best->ms * kFirstStays < first.ms ? *best : first;
  return {.algorithm = chosen.algorithm, .ms = chosen.ms, .first_ms = first.ms};
}

}  // namespace

std::shared_ptr<GemmAlgorithms> make_gemm_algorithms(CudaStream& stream, GemmChoice choice) {
  cudaDeviceProp device;
  MEGALITH_CUDA_CHECK(cudaGetDeviceProperties(&device, stream.device()));
  return std::make_shared<GemmAlgorithms>(
      choice, fmt::format("{} sm_{}{} {} multiprocessors, cublasLt {}, workspace {}", device.name, device.major,
                          device.minor, device.multiProcessorCount, cublasLtGetVersion(), kGemmWorkspaceBytes));
}

void use_gemm_algorithms(CudaStream& stream, std::shared_ptr<GemmAlgorithms> table) {
  require(table != nullptr, "use_gemm_algorithms without a table");
  stream.state().gemm_algorithms = std::move(table);
}

GemmAlgorithms& gemm_algorithms(CudaStream& stream) {
  std::shared_ptr<GemmAlgorithms>& table = stream.state().gemm_algorithms;
  if (table == nullptr) table = make_gemm_algorithms(stream, GemmChoice::kFirst);
  return *table;
}

GemmTuning tune(CudaStream& stream, GemmAlgorithms& table, const GemmScratch& scratch) {
  require(!is_capturing(stream.handle()), "GEMM algorithms cannot be measured under capture");
  GemmTuning result;
  for (const GemmSignature& signature : table.pending()) {
    Measurement measurement(stream, signature, scratch);
    if (!measurement.fits()) {
      ++result.too_large;
      continue;
    }
    measurement.fill();
    const Winner winner = fastest(measurement);
    table.add_measured(signature, winner.algorithm);
    ++result.measured;
    result.first_seconds += 1e-3 * winner.first_ms;
    result.chosen_seconds += 1e-3 * winner.ms;
  }
  return result;
}

void load_gemm_kernels(CudaStream& stream, GemmAlgorithms& table, std::span<const GemmSignature> signatures,
                       const GemmScratch& scratch) {
  for (const GemmSignature& signature : signatures) {
    const GemmAlgorithm* const algorithm = table.find(signature);
    require(algorithm != nullptr, "load_gemm_kernels of a GEMM that was never seen");
    Measurement measurement(stream, signature, scratch);
    if (measurement.fits()) measurement.time(*algorithm, 1);
  }
}

}  // namespace megalith
