#include "core/ops/gemm/gemm_algorithms.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

const std::string kHere = "GPU X sm_90 132 multiprocessors, cublasLt 130100, workspace 1";

GemmSignature signature(std::int64_t m) {
  return {.m = m, .n = 8, .k = 16, .stride_a = 16, .stride_b = 8, .stride_c = 8};
}

GemmAlgorithm algorithm(std::uint64_t first) { return {first, 0, 3, ~std::uint64_t{0}, 0, 0, 0, first + 1}; }

TEST(GemmAlgorithms, SignatureSaysAllThatTheChoiceDependsOn) {
  alignas(64) static std::byte memory[4096];
  const Tensor a(memory, DType::kBf16, {6, 4}), b(memory + 512, DType::kBf16, {8, 12});
  Gemm op{.a = a,
          .b = b.slice(1, 2, 4),
          .c = Tensor(memory + 1024, DType::kFp32, {6, 8}),
          .transpose_b = true,
          .bias = Tensor(memory + 2048, DType::kBf16, {8}),
          .accumulate = true};
  GemmSignature s = signature_of(op);
  EXPECT_EQ(to_string(s), "bf16 nt m6 n8 k4 lda4 ldb12 ldc8 align16/4/16 out fp32 accumulate");
  EXPECT_FALSE(s.bias) << "cuBLASLt adds no bf16 bias to an fp32 c";
  op.c = Tensor(memory + 1024, DType::kBf16, {6, 8});
  s = signature_of(op);
  EXPECT_TRUE(s.bias);
  op.bias.data = memory + 2050;
  EXPECT_FALSE(signature_of(op).bias) << "nor a misaligned one";
  op.bias = {};
  op.accumulate = false;
  op.pre_activation = Tensor(memory + 3072, DType::kBf16, {6, 8});
  s = signature_of(op);
  EXPECT_EQ(to_string(s), "bf16 nt m6 n8 k4 lda4 ldb12 ldc8 align16/4/16 out bf16 gelu");
  op.bias = Tensor(memory + 2050, DType::kBf16, {8});
  EXPECT_EQ(signature_of(op).gelu, GemmGelu::kNone) << "the misaligned bias has to come first";
  op.bias = {};
  op.gelu_input = std::exchange(op.pre_activation, {});
  EXPECT_EQ(signature_of(op).gelu, GemmGelu::kBackward);
  op.gelu_input.data = memory + 3074;
  EXPECT_EQ(signature_of(op).gelu, GemmGelu::kNone) << "misaligned";
  op.gelu_input = {};
  Tensor overlapping = a;
  overlapping.strides[0] = 2;
  op.a = overlapping;
  EXPECT_THROW(signature_of(op), Error);
}

TEST(GemmAlgorithms, OneRowHasTheStrideOfAPackedOne) {
  static float memory[64];
  const Tensor matrix(memory, DType::kFp32, {4, 8});
  const Gemm op{.a = matrix.slice(0, 1, 1).slice(1, 0, 4),
                .b = Tensor(memory, DType::kFp32, {4, 8}),
                .c = Tensor(memory + 32, DType::kFp32, {1, 8})};
  EXPECT_EQ(signature_of(op).stride_a, 4);
}

TEST(GemmAlgorithms, MeasuredEntriesSurviveAsText) {
  GemmAlgorithms table(GemmChoice::kMeasured, kHere);
  EXPECT_EQ(table.find(signature(1)), nullptr);
  table.add_first(signature(1), algorithm(10));
  table.add_first(signature(2), algorithm(20));
  EXPECT_EQ(*table.find(signature(1)), algorithm(10));
  EXPECT_EQ(table.pending().size(), 2u);
  EXPECT_TRUE(table.entries().empty()) << "first answers are no measurement";
  table.add_measured(signature(2), algorithm(21));
  EXPECT_EQ(*table.find(signature(2)), algorithm(21));
  ASSERT_EQ(table.pending().size(), 1u);
  EXPECT_EQ(table.pending()[0], signature(1));
  ASSERT_EQ(table.entries().size(), 1u);

  GemmAlgorithms restored(GemmChoice::kMeasured, kHere);
  restored.add_first(signature(2), algorithm(22));
  EXPECT_EQ(restored.load(table.entries(), "a checkpoint"), 1);
  EXPECT_EQ(*restored.find(signature(2)), algorithm(21)) << "also over a first answer";
  EXPECT_TRUE(restored.pending().empty());
  EXPECT_EQ(restored.entries(), table.entries());
  GemmAlgorithms later(GemmChoice::kMeasured, kHere);
  later.load(table.entries(), "a checkpoint");
  EXPECT_EQ(later.entries(), table.entries()) << "also before the signature was seen";
  EXPECT_EQ(*later.find(signature(2)), algorithm(21));
}

TEST(GemmAlgorithms, OtherEnvironmentsAreLeftOut) {
  GemmAlgorithms there(GemmChoice::kMeasured, "GPU Y"), here(GemmChoice::kMeasured, kHere);
  there.add_measured(signature(3), algorithm(1));
  EXPECT_EQ(here.load(there.entries(), "disk"), 0);
  EXPECT_EQ(here.find(signature(3)), nullptr);
}

TEST(GemmAlgorithms, FirstAnswersIgnoreWhatWasMeasured) {
  GemmAlgorithms measured(GemmChoice::kMeasured, kHere), first(GemmChoice::kFirst, kHere);
  measured.add_measured(signature(3), algorithm(1));
  EXPECT_EQ(first.load(measured.entries(), "disk"), 0);
  EXPECT_EQ(first.find(signature(3)), nullptr);
  first.add_first(signature(3), algorithm(2));
  EXPECT_TRUE(first.pending().empty());
}

TEST(GemmAlgorithms, DamagedEntriesAreRefusedAndNothingIsTaken) {
  GemmAlgorithms measured(GemmChoice::kMeasured, kHere);
  measured.add_measured(signature(1), algorithm(1));
  measured.add_measured(signature(2), algorithm(2));
  for (const char* damage : {"", "12", "x"}) {
    auto entries = measured.entries();
    std::string& value = entries.rbegin()->second;
    value = *damage == 'x' ? 'x' + value.substr(1) : damage;
    GemmAlgorithms table(GemmChoice::kMeasured, kHere);
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { table.load(entries, "table.json"); }), HasSubstr("table.json"));
    EXPECT_TRUE(table.entries().empty());
  }
}

}  // namespace
}  // namespace megalith::test
