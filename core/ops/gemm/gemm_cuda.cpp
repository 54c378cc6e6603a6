// GEMM through cuBLASLt: compute-bound, deterministic (no atomics, partial sums in the op's workspace). Sums are fp32
// and rounded once, except that cuBLASLt rounds the product ahead of its addition to a bf16 c. fp32 inputs are
// multiplied as fp32, never as TF32.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/device/cuda_stream_state.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"
#include "core/ops/gemm/gemm_few_rows_cuda.h"
#include "core/ops/gemm/gemm_problem_cuda.cuh"
#include "core/ops/gemm/gemm_unfused.h"

namespace megalith {

namespace {

static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

constexpr int kFirstAnswers = 8;  // requested: the first ones may be excluded
constexpr float kOne = 1;
constexpr float kZero = 0;

cudaDataType type_of(DType dtype) { return dtype == DType::kFp32 ? CUDA_R_32F : CUDA_R_16BF; }

template <class T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t name, T value) {
  MEGALITH_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&product, name, &value, sizeof(value)));
}

// Describes a `rows` x `columns` row-major matrix.
void describe(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, std::int64_t rows, std::int64_t columns,
              std::int64_t stride) {
  MEGALITH_CUBLAS_CHECK(cublasLtMatrixLayoutInit(&layout, type_of(dtype), static_cast<std::uint64_t>(columns),
                                                 static_cast<std::uint64_t>(rows), stride));
}

cublasLtMatmulPreferenceOpaque_t preference_for(const GemmSignature& s) {
  cublasLtMatmulPreferenceOpaque_t preference;
  MEGALITH_CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
  const auto set_preference = [&preference](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    MEGALITH_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
  };
  set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kGemmWorkspaceBytes});
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(s.alignment_b));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(s.alignment_a));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(s.alignment_c));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(s.alignment_c));
  return preference;
}

cublasLtEpilogue_t epilogue_of(const GemmSignature& s) {
  switch (s.gelu) {
    case GemmGelu::kForward: return s.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmGelu::kBackward: return CUBLASLT_EPILOGUE_DGELU;
    case GemmGelu::kNone: break;
  }
  return s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// Allows split-K only with fp32 partial sums in the workspace, added in a fixed order. Not with a bias or a GELU, which
// cuBLASLt then applies to the sum rounded to bf16.
bool is_allowed(const cublasLtMatmulAlgo_t& algorithm, const GemmSignature& s) {
  std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::size_t written = 0;
  MEGALITH_CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                             sizeof(scheme), &written));
  if (scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return true;
  return scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && s.gelu == GemmGelu::kNone &&
         !(s.bias && s.output == DType::kBf16);
}

}  // namespace

GemmProblem::GemmProblem(const GemmSignature& s) : signature_(s) {
  MEGALITH_CUBLAS_CHECK(cublasLtMatmulDescInit(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(product_, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product_, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(s));
  if (s.bias) set(product_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.output));
  if (s.gelu != GemmGelu::kNone) set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.n);
  describe(a_, s.input, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.stride_a);
  describe(b_, s.input, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, s.stride_b);
  describe(c_, s.output, s.m, s.n, s.stride_c);
}

void GemmProblem::run(CudaStream& stream, const GemmOperands& x, const GemmAlgorithm& algorithm) {
  if (signature_.bias) set(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
  if (signature_.gelu != GemmGelu::kNone) set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.gelu);
  cublasLtMatmulAlgo_t native;
  std::copy(algorithm.begin(), algorithm.end(), native.data);
  std::size_t workspace = kGemmWorkspaceBytes;
  // Most algorithms use no workspace. In a graph the next GEMM, with the same workspace, may then run concurrently.
  if (CaptureNotes& notes = stream.state().capture; notes.wanted) {
    cublasLtMatmulHeuristicResult_t needs{};
    MEGALITH_CUBLAS_CHECK(cublasLtMatmulAlgoCheck(stream.blas_lt(), &product_, &b_, &a_, &c_, &c_, &native, &needs));
    workspace = needs.workspaceSize;
    notes.touches(x.workspace, workspace);
  }
  MEGALITH_CUBLAS_CHECK(cublasLtMatmul(stream.blas_lt(), &product_, &kOne, x.b, &b_, x.a, &a_,
                                       signature_.accumulate ? &kOne : &kZero, x.c, &c_, x.c, &c_, &native, x.workspace,
                                       workspace, stream.handle()));
}

std::vector<GemmAlgorithm> GemmProblem::answers(CudaStream& stream, int count) {
  cublasLtMatmulPreferenceOpaque_t preference = preference_for(signature_);
  // Any aligned address; run() sets the actual one.
  if (signature_.gelu != GemmGelu::kNone)
    set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(kGemmWorkspaceBytes));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(stream.blas_lt(), &product_, &b_, &a_, &c_, &c_,
                                                               &preference, count, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) MEGALITH_CUBLAS_CHECK(status);
  std::vector<GemmAlgorithm> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<std::size_t>(found))) {
    if (result.state != CUBLAS_STATUS_SUCCESS || !is_allowed(result.algo, signature_)) continue;
    GemmAlgorithm& algorithm = algorithms.emplace_back();
    std::copy(std::begin(result.algo.data), std::end(result.algo.data), algorithm.begin());
  }
  return algorithms;
}

namespace {

// Returns null if there is none.
const GemmAlgorithm* algorithm_for(CudaStream& stream, GemmProblem& problem, const GemmSignature& signature) {
  GemmAlgorithms& table = gemm_algorithms(stream);
  if (const GemmAlgorithm* known = table.find(signature); known != nullptr) return known;
  if (table.is_unanswered(signature)) return nullptr;
  const std::vector<GemmAlgorithm> answers = problem.answers(stream, kFirstAnswers);
  if (!answers.empty()) return &table.add_first(signature, answers.front());
  table.add_unanswered(signature);
  return nullptr;
}

// Writes the bias to every row of c, or adds it: the cases that cuBLASLt does not support.
void run_bias(CudaStream& stream, const Gemm& op, bool accumulate) {
  Tensor rows = op.bias;
  rows.shape = op.c.shape;
  rows.strides = {0, 1};
  run(stream, CastRows{.x = rows, .y = op.c, .accumulate = accumulate});
}

void run_unfused(CudaStream& stream, const Gemm& op) {
  run(stream, product_of(op));
  op.pre_activation ? run(stream, gelu_after(op)) : run(stream, gelu_before(op));
}

}  // namespace

void run(CudaStream& stream, const Gemm& op) {
  if (suits_few_rows(op)) return run_few_rows(stream, op);
  const GemmSignature signature = signature_of(op);
  if (has_gelu(op) && signature.gelu == GemmGelu::kNone) return run_unfused(stream, op);
  if (signature.m == 0 || signature.n == 0) return;
  if (signature.k == 0) {
    if (op.bias) return run_bias(stream, op, op.accumulate);
    if (!op.accumulate) run(stream, Fill{.x = op.c, .value = 0});
    return;
  }
  GemmProblem problem(signature);
  const GemmAlgorithm* algorithm = algorithm_for(stream, problem, signature);
  if (algorithm == nullptr && has_gelu(op)) return run_unfused(stream, op);
  if (algorithm == nullptr) {
    fail({.subject = fmt::format("GEMM {}", to_string(signature)),
          .expected = "an algorithm of cuBLASLt",
          .got = "none"});
  }
  problem.run(stream,
              {.a = op.a.data,
               .b = op.b.data,
               .c = op.c.data,
               .bias = op.bias.data,
               .gelu = op.pre_activation ? op.pre_activation.data : op.gelu_input.data,
               .workspace = op.workspace.data},
              *algorithm);
  if (op.bias && !signature.bias) run_bias(stream, op, true);  // bf16 with an fp32 c, or not aligned
}

}  // namespace megalith
