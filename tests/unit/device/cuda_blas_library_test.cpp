// cuBLASLt as core/device/cuda/blas_library.cpp loads it; needs no GPU.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <string>

namespace megalith {
namespace {

TEST(CudaBlasLibrary, AnswersUnderItsOwnNames) {
  EXPECT_EQ(cublasLtGetVersion() / 10'000, static_cast<std::size_t>(CUBLAS_VER_MAJOR));
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_NE(std::string(cublasLtGetStatusString(CUBLAS_STATUS_ALLOC_FAILED)), "");
}

// The library validates the arguments: it accepts some sizes and attributes, and rejects others.
TEST(CudaBlasLibrary, HandsArgumentsOn) {
  cublasLtMatrixLayoutOpaque_t matrix;
  ASSERT_EQ(cublasLtMatrixLayoutInit(&matrix, CUDA_R_16BF, 64, 32, 72), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatrixLayoutInit(nullptr, CUDA_R_16BF, 64, 32, 72), CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulDescOpaque_t product;
  ASSERT_EQ(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulPreferenceOpaque_t preference;
  ASSERT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  const std::size_t bytes = 1 << 20;
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                 sizeof(bytes)),
            CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace megalith
