// Stubs of the CUDA kernels for builds without CUDA, in which no CudaStream exists.
#include "moe/ops/expert_bias.h"
#include "moe/ops/expert_capacity.h"
#include "moe/ops/grouped_bias.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/routed_activation.h"
#include "moe/ops/router.h"
#include "moe/ops/router_logits.h"

namespace megalith {

void run(CudaStream&, const GroupedGemm&) { refuse_cuda(); }
void run(CudaStream&, const GroupedGemmWgrad&) { refuse_cuda(); }
void run(CudaStream&, const GroupedGemmSwiglu&) { refuse_cuda(); }
void run(CudaStream&, const GroupedGemmSwigluBackward&) { refuse_cuda(); }
void run(CudaStream&, const RoutedSwigluForward&) { refuse_cuda(); }
void run(CudaStream&, const RoutedSwigluBackward&) { refuse_cuda(); }
void run(CudaStream&, const RoutedActivationForward&) { refuse_cuda(); }
void run(CudaStream&, const RoutedActivationBackward&) { refuse_cuda(); }
void run(CudaStream&, const GroupedBias&) { refuse_cuda(); }
void run(CudaStream&, const GroupedBiasDot&) { refuse_cuda(); }
void run(CudaStream&, const GroupedBiasGradient&) { refuse_cuda(); }
void run(CudaStream&, const ChosenRanks&) { refuse_cuda(); }
void run(CudaStream&, const ArrivedRows&) { refuse_cuda(); }
void run(CudaStream&, const UnpermuteGroups&) { refuse_cuda(); }
void run(CudaStream&, const SumReturnedWeights&) { refuse_cuda(); }
void run(CudaStream&, const RecordRoom&) { refuse_cuda(); }
void run(CudaStream&, const CountSentRows&) { refuse_cuda(); }
void run(CudaStream&, const CountExpertRows&) { refuse_cuda(); }
void run(CudaStream&, const UpdateExpertBias&) { refuse_cuda(); }
void run(CudaStream&, const LimitExpertRows&) { refuse_cuda(); }
void run(CudaStream&, const ExpertOffsets&) { refuse_cuda(); }
void run(CudaStream&, const PermuteRows&) { refuse_cuda(); }
void run(CudaStream&, const UnpermuteRows&) { refuse_cuda(); }
void run(CudaStream&, const PermuteWeights&) { refuse_cuda(); }
void run(CudaStream&, const UnpermuteWeightGradients&) { refuse_cuda(); }
void run(CudaStream&, const RouterLogits&) { refuse_cuda(); }
void run(CudaStream&, const RouterTopk&) { refuse_cuda(); }
void run(CudaStream&, const RouterTopkBackward&) { refuse_cuda(); }
void run(CudaStream&, const RelativeLoads&) { refuse_cuda(); }
void run(CudaStream&, const RouterLosses&) { refuse_cuda(); }

}  // namespace megalith
