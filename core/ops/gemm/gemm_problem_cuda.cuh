// A GEMM in cuBLASLt's terms. The library is column-major and computes c^T = op(b)^T op(a)^T. Its first matrix is b,
// our row is its column, and a bias over our columns is its bias over rows.
#pragma once

#include <vector>

#include "core/device/cuda/library_check.h"
#include "core/device/cuda_stream.h"
#include "core/ops/gemm/gemm_algorithms.h"

namespace megalith {

struct GemmOperands {
  const void* a;
  const void* b;
  void* c;
  const void* bias;  // null unless the signature has one
  void* gelu;        // [m, n] the GELU's input, out in forward; null unless the signature has one
  void* workspace;   // kGemmWorkspaceBytes, 256-byte aligned
};

// Descriptors in place, without allocation.
class GemmProblem {
 public:
  explicit GemmProblem(const GemmSignature& signature);

  void run(CudaStream& stream, const GemmOperands& operands, const GemmAlgorithm& algorithm);

  // Returns up to `count` algorithms, the library's best guess first. A host query without device work, legal under
  // capture. Empty if there is none, such as for a GELU at some small or odd sizes.
  std::vector<GemmAlgorithm> answers(CudaStream& stream, int count);

 private:
  GemmSignature signature_;
  cublasLtMatmulDescOpaque_t product_;
  cublasLtMatrixLayoutOpaque_t a_, b_, c_;
};

}  // namespace megalith
