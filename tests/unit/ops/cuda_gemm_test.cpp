// GEMM on the GPU at sizes of training: against fp64, run to run, replayed, and measured. The bodies in gemm_test.cpp
// cover transposes, strides, biases and small sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "core/device/cuda_device.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"
#include "core/ops/op.h"
#include "tests/reference/activation.h"
#include "tests/unit/ops/cuda_memory.h"

namespace megalith::test {
namespace {

class CudaGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
};

struct GemmCase {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate, bias;
  DType input = DType::kBf16, output = DType::kBf16;
  GemmGelu gelu = GemmGelu::kNone;
};

// The products of a linear layer, and odd sizes.
const GemmCase kCases[] = {
    {1024, 2304, 768, false, true, false, true},
    {1024, 768, 2304, false, false, false, false},
    {768, 2304, 1024, true, false, true, false, DType::kBf16, DType::kFp32},
    {768, 768, 4096, true, false, true, false, DType::kBf16, DType::kBf16},
    {333, 517, 129, true, true, false, true},
    {333, 517, 129, false, true, true, true, DType::kBf16, DType::kFp32},
    {384, 512, 640, false, true, false, true, DType::kFp32, DType::kFp32},
    {512, 384, 640, true, false, true, false, DType::kFp32, DType::kFp32},
    {1024, 3072, 768, false, true, false, true, DType::kBf16, DType::kBf16, GemmGelu::kForward},
    {1024, 3072, 768, false, false, false, false, DType::kBf16, DType::kBf16, GemmGelu::kBackward},
    {1024, 3072, 768, false, true, false, false, DType::kBf16, DType::kBf16, GemmGelu::kForward},
    {333, 520, 129, false, true, false, false, DType::kBf16, DType::kBf16, GemmGelu::kForward}};

// An odd depth is not fused: cuBLASLt has no algorithm for it.
bool has_algorithm(const GemmCase& x) { return x.gelu == GemmGelu::kNone || x.k % 8 == 0; }

struct GemmProblem {
  GemmCase sizes;
  CudaStream& stream;
  CudaBlock a, b, c, bias, gelu, workspace;
  std::vector<double> a_values, b_values, c_values, bias_values, gelu_values;

  GemmProblem(CudaStream& s, const GemmCase& x)
      : sizes(x),
        stream(s),
        a(s, x.transpose_a ? Shape{x.k, x.m} : Shape{x.m, x.k}, x.input),
        b(s, x.transpose_b ? Shape{x.n, x.k} : Shape{x.k, x.n}, x.input),
        c(s, {x.m, x.n}, x.output),
        bias(s, {x.n}, x.input),
        gelu(s, {x.gelu == GemmGelu::kNone ? 0 : x.m, x.n}, x.output),
        workspace(s, {static_cast<std::int64_t>(kGemmWorkspaceBytes)}, DType::kUint8) {
    std::vector<double> rows = normal_values(a.tensor().numel(), 1);
    // Not all of the products in GELU's tails.
    for (double& value : rows) value *= x.gelu == GemmGelu::kNone ? 1 : 2 / std::sqrt(static_cast<double>(x.k));
    a.upload(rows);
    b.upload(normal_values(b.tensor().numel(), 2));
    bias.upload(normal_values(x.n, 3));
    c_values = normal_values(c.tensor().numel(), 4);
    gelu_values = normal_values(gelu.tensor().numel(), 5);
    reset();
    a_values = a.values(), b_values = b.values(), bias_values = bias.values();
    if (x.accumulate) c_values = c.values();
    if (x.gelu == GemmGelu::kBackward) gelu_values = gelu.values();
  }
  void reset() {
    sizes.accumulate ? c.upload(c_values) : c.poison();
    sizes.gelu == GemmGelu::kBackward ? gelu.upload(gelu_values) : gelu.poison();
  }
  Gemm op() const {
    return {.a = a.tensor(),
            .b = b.tensor(),
            .c = c.tensor(),
            .transpose_a = sizes.transpose_a,
            .transpose_b = sizes.transpose_b,
            .bias = sizes.bias ? bias.tensor() : Tensor{},
            .accumulate = sizes.accumulate,
            .pre_activation = sizes.gelu == GemmGelu::kForward ? gelu.tensor() : Tensor{},
            .gelu_input = sizes.gelu == GemmGelu::kBackward ? gelu.tensor() : Tensor{},
            .workspace = workspace.tensor()};
  }
  void multiply() {
    check(op());
    run(stream, op());
  }
  // Compares every 37th element, at the tolerance of gemm_test.cpp.
  void expect_right() {
    EXPECT_EQ(gemm_algorithms(stream).find(signature_of(op())) != nullptr, has_algorithm(sizes));
    const std::vector<double> got = c.values(), saved = gelu.values();
    const auto u = [](DType dtype) { return dtype == DType::kBf16 ? 0x1p-8 : 0x1p-24; };
    for (std::int64_t at = 0; at < sizes.m * sizes.n; at += 37) {
      const std::int64_t i = at / sizes.n, j = at % sizes.n;
      double want = (sizes.accumulate ? c_values[static_cast<std::size_t>(at)] : 0) +
                    (sizes.bias ? bias_values[static_cast<std::size_t>(j)] : 0);
      double magnitude = std::abs(want);
      const double start = want;
      for (std::int64_t p = 0; p < sizes.k; ++p) {
        const double term = a_values[static_cast<std::size_t>(sizes.transpose_a ? p * sizes.m + i : i * sizes.k + p)] *
                            b_values[static_cast<std::size_t>(sizes.transpose_b ? j * sizes.k + p : p * sizes.n + j)];
        want += term;
        magnitude += std::abs(term);
      }
      // cuBLASLt rounds the product ahead of the addition of a bf16 c.
      const bool rounds_twice = sizes.accumulate && sizes.output == DType::kBf16;
      const double rounded = std::abs(want) + (rounds_twice ? std::abs(want - start) + std::abs(start) : 0);
      double allowed =
          2 * u(sizes.output) * rounded + (4 + std::sqrt(static_cast<double>(sizes.k) + 2)) * 0x1p-24 * magnitude;
      if (sizes.gelu == GemmGelu::kForward) {
        ASSERT_NEAR(saved[static_cast<std::size_t>(at)], want, allowed) << "row " << i << " column " << j;
        allowed = 1.13 * allowed + 2 * u(sizes.output) * std::abs(want);  // the largest slope; the halves of x (1 + t)
        want = reference::gelu(want, false);
      }
      if (sizes.gelu == GemmGelu::kBackward) {
        const double x = saved[static_cast<std::size_t>(at)], slope = reference::gelu_slope(x, false);
        const double t = std::tanh(reference::gelu_tanh_argument(x));
        const double terms =
            0.5 * (1 + std::abs(t) + std::abs(x * (1 + t * t) * reference::gelu_tanh_argument_slope(x)));
        allowed = std::abs(slope) * allowed + 2 * u(sizes.output) * std::abs(want) * terms;
        want *= slope;
      }
      ASSERT_NEAR(got[static_cast<std::size_t>(at)], want, allowed) << "row " << i << " column " << j;
    }
  }
};

std::string name_of_gemm(const GemmCase& x) {
  return "m" + std::to_string(x.m) + " n" + std::to_string(x.n) + " k" + std::to_string(x.k);
}

TEST_F(CudaGemm, AgreesWithFp64RepeatsAndReplays) {
  CudaStream stream;
  for (const GemmCase& x : kCases) {
    SCOPED_TRACE(name_of_gemm(x));
    GemmProblem p(stream, x);
    p.multiply();
    p.expect_right();
    const auto eager = p.c.bytes();
    for (int i = 0; i < 3; ++i) {
      p.reset();
      p.multiply();
      EXPECT_EQ(p.c.bytes(), eager);
    }
    p.reset();
    capture_and_replay(stream, 1, [&p] { p.multiply(); });
    EXPECT_EQ(p.c.bytes(), eager);
  }
}

// A new signature may be captured too: the first answer is used, and nothing is measured.
TEST_F(CudaGemm, FirstCallUnderCapture) {
  CudaStream stream;
  GemmProblem p(stream, kCases[0]);
  capture_and_replay(stream, 1, [&p] { p.multiply(); });
  p.expect_right();
}

TEST_F(CudaGemm, MeasuredAlgorithmsAreRightAndTravelAsText) {
  CudaStream stream;
  std::deque<GemmProblem> problems;
  for (const GemmCase& x : kCases) problems.emplace_back(stream, x);
  const auto table_of_calls = [&] {
    auto table = make_gemm_algorithms(stream, GemmChoice::kMeasured);
    use_gemm_algorithms(stream, table);
    for (GemmProblem& p : problems) p.multiply();
    return table;
  };
  const auto other = table_of_calls();  // on a rank that does not measure
  const auto table = table_of_calls();
  const std::size_t seen = table->pending().size();
  EXPECT_EQ(seen, std::size(kCases));
  CudaBlock scratch(stream, {64 << 20}, DType::kUint8);
  const GemmScratch all{scratch.tensor().data, scratch.tensor().bytes()};
  EXPECT_EQ(tune(stream, *table, {scratch.tensor().data, 4096}).too_large, static_cast<int>(seen));
  const GemmTuning tuning = tune(stream, *table, all);
  EXPECT_EQ(tuning.measured, static_cast<int>(seen));
  EXPECT_LE(tuning.chosen_seconds, tuning.first_seconds);
  EXPECT_TRUE(table->pending().empty());
  const std::vector<GemmSignature> pending = other->pending();
  EXPECT_EQ(other->load(table->entries(), "the first replica"), static_cast<std::int64_t>(seen));
  load_gemm_kernels(stream, *other, pending, all);
  EXPECT_TRUE(other->pending().empty());
  EXPECT_THROW(load_gemm_kernels(stream, *make_gemm_algorithms(stream, GemmChoice::kMeasured), pending, {}), Error);

  CudaStream restored;
  const auto copy = make_gemm_algorithms(restored, GemmChoice::kMeasured);
  EXPECT_EQ(copy->load(table->entries(), "a checkpoint"), static_cast<std::int64_t>(seen));
  use_gemm_algorithms(restored, copy);
  for (GemmProblem& p : problems) {
    SCOPED_TRACE(name_of_gemm(p.sizes));
    GemmProblem q(restored, p.sizes);
    p.reset();
    p.multiply();
    p.expect_right();
    q.multiply();
    EXPECT_EQ(p.c.bytes(), q.c.bytes());
  }
  EXPECT_TRUE(copy->pending().empty());
}

TEST_F(CudaGemm, MeasuresNothingUnderCapture) {
  CudaStream stream;
  const auto table = make_gemm_algorithms(stream, GemmChoice::kMeasured);
  use_gemm_algorithms(stream, table);
  GemmProblem p(stream, kCases[0]);
  p.multiply();
  capture_and_replay(stream, 0, [&] { EXPECT_THROW(tune(stream, *table, {nullptr, 0}), Error); });
}

}  // namespace
}  // namespace megalith::test
