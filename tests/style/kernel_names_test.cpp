#include "tests/style/kernel_names.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

TEST(KernelNames, BeginWithTheirOps) {
  std::map<std::string, std::string> texts = {
      {"moe/ops/gemm.h", "struct A {\n  static constexpr const char* kName = \"gemm_swiglu\";\n};\n"},
      {"core/ops/copy.h", "struct B {\n  MEGALITH_OP(B, \"copy\");\n};\n"},
      {"core/ops/copy_cuda.cu", "__global__ void copy_rows_kernel(float* x) {}\n"},
      {"moe/ops/gemm_cuda.cu",
       "template <class T>\n__global__ void __launch_bounds__(Tiling<T>::kThreads, 1)\n"
       "    gemm_swiglu_kernel(const __grid_constant__ Arguments<T> p) {\n  f(p);\n}\n"
       "__global__ void gemm_swiglu_add_kernel(float* x) {}\n"},
      {"tests/support/a_cuda.cu", "__global__ void spin(int* x) {}\n"}};
  EXPECT_THAT(check_kernel_names(texts), IsEmpty());
  texts["moe/ops/other_cuda.cu"] = "__global__ void gemm_kernel(const int* x) {}\n";
  texts["core/ops/last.cuh"] = "static __global__ void gemm_swiglu(Arguments x) {}\n";
  EXPECT_THAT(check_kernel_names(texts), ElementsAre(HasSubstr("core/ops/last.cuh: gemm_swiglu: expected the name"),
                                                     HasSubstr("moe/ops/other_cuda.cu: gemm_kernel: expected")));
}

}  // namespace
}  // namespace megalith::style
