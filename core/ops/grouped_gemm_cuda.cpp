#include "core/ops/grouped_gemm_plain_cuda.h"

namespace megalith {

void run(CudaStream& stream, const GroupedGemm& op) { cuda::run_plain(stream, op); }
void run(CudaStream& stream, const GroupedGemmWgrad& op) { cuda::run_plain(stream, op); }
void run(CudaStream& stream, const GroupedGemmSwiglu& op) { cuda::run_plain(stream, op); }
void run(CudaStream& stream, const GroupedGemmSwigluBackward& op) { cuda::run_plain(stream, op); }

}  // namespace megalith
