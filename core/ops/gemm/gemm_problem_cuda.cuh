// cuBLASLt's view of a GEMM. The library is column-major, so it computes c^T = op(b)^T op(a)^T: its first matrix is b,
// a row of ours is its column, and a bias over our columns is its bias over rows.
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
  void* gelu;        // [m, n] the input of the GELU, out in forward; null unless the signature has one
  void* workspace;   // kGemmWorkspaceBytes, 256-byte aligned
};

// Descriptors live in place: making one costs no allocation.
class GemmProblem {
 public:
  explicit GemmProblem(const GemmSignature& signature);

  void run(CudaStream& stream, const GemmOperands& operands, const GemmAlgorithm& algorithm);

  // Up to `count` algorithms, the library's best guess first. A query on the host: nothing runs, so it may happen under
  // capture. Empty if there is none, as for a GELU at some small or odd sizes.
  std::vector<GemmAlgorithm> answers(CudaStream& stream, int count);

 private:
  GemmSignature signature_;
  cublasLtMatmulDescOpaque_t product_;
  cublasLtMatrixLayoutOpaque_t a_, b_, c_;
};

}  // namespace megalith
