#include "moe/ops/grouped_gemm/grouped_gemm_hopper_cuda.h"
#include "moe/ops/grouped_gemm/grouped_gemm_plain_cuda.h"

namespace megalith {

namespace {

template <class Op>
void run_best(CudaStream& stream, const Op& op) {
  if (!cuda::run_hopper(stream, op)) cuda::run_plain(stream, op);
}

}  // namespace

void run(CudaStream& stream, const GroupedGemm& op) { run_best(stream, op); }
void run(CudaStream& stream, const GroupedGemmWgrad& op) { run_best(stream, op); }
void run(CudaStream& stream, const GroupedGemmSwiglu& op) { run_best(stream, op); }
void run(CudaStream& stream, const GroupedGemmSwigluBackward& op) { run_best(stream, op); }

}  // namespace megalith
