// Stubs of the CUDA kernels in a build without CUDA. No CudaStream exists there, so that they are never called.
#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/activation.h"
#include "core/ops/elementwise/copy_rows.h"
#include "core/ops/elementwise/dropout.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/elementwise/reduce.h"
#include "core/ops/gemm/gemm.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/loss/vocab_cross_entropy.h"
#include "core/ops/norm/norm.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/count_nan.h"
#include "core/ops/optim/grad_norm.h"
#include "core/ops/token/embedding.h"
#include "core/ops/token/sampling.h"

namespace megalith {

void run(CudaStream&, const GeluForward&) { refuse_cuda(); }
void run(CudaStream&, const GeluBackward&) { refuse_cuda(); }
void run(CudaStream&, const SquaredReluForward&) { refuse_cuda(); }
void run(CudaStream&, const SquaredReluBackward&) { refuse_cuda(); }
void run(CudaStream&, const SwigluForward&) { refuse_cuda(); }
void run(CudaStream&, const SwigluBackward&) { refuse_cuda(); }
void run(CudaStream&, const AdamW&) { refuse_cuda(); }
void run(CudaStream&, const AttentionForward&) { refuse_cuda(); }
void run(CudaStream&, const AttentionBackward&) { refuse_cuda(); }
void run(CudaStream&, const CachedAttention&) { refuse_cuda(); }
void run(CudaStream&, const KvCacheAppend&) { refuse_cuda(); }
void run(CudaStream&, const DecodeAttention&) { refuse_cuda(); }
void run(CudaStream&, const AttentionMerge&) { refuse_cuda(); }
void run(CudaStream&, const CastRows&) { refuse_cuda(); }
void run(CudaStream&, const CopyRows&) { refuse_cuda(); }
void run(CudaStream&, const CrossEntropy&) { refuse_cuda(); }
void run(CudaStream&, const Dropout&) { refuse_cuda(); }
void run(CudaStream&, const Add&) { refuse_cuda(); }
void run(CudaStream&, const SumParts&) { refuse_cuda(); }
void run(CudaStream&, const Copy&) { refuse_cuda(); }
void run(CudaStream&, const Fill&) { refuse_cuda(); }
void run(CudaStream&, const EmbeddingForward&) { refuse_cuda(); }
void run(CudaStream&, const EmbeddingBackward&) { refuse_cuda(); }
void run(CudaStream&, const FillNormal&) { refuse_cuda(); }
void run(CudaStream&, const Gemm&) { refuse_cuda(); }
void run(CudaStream&, const SumOfSquares&) { refuse_cuda(); }
void run(CudaStream&, const AddPieces&) { refuse_cuda(); }
void run(CudaStream&, const GradNormFinalize&) { refuse_cuda(); }
void run(CudaStream&, const StoreTotal&) { refuse_cuda(); }
void run(CudaStream&, const WriteStepParameters&) { refuse_cuda(); }
void run(CudaStream&, const WriteMicrobatchParameters&) { refuse_cuda(); }
void run(CudaStream&, const RmsNormForward&) { refuse_cuda(); }
void run(CudaStream&, const RmsNormBackward&) { refuse_cuda(); }
void run(CudaStream&, const LayerNormForward&) { refuse_cuda(); }
void run(CudaStream&, const LayerNormBackward&) { refuse_cuda(); }
void run(CudaStream&, const ReduceRows&) { refuse_cuda(); }
void run(CudaStream&, const ReduceToScalar&) { refuse_cuda(); }
void run(CudaStream&, const Rope&) { refuse_cuda(); }
void run(CudaStream&, const CountNan&) { refuse_cuda(); }
void run(CudaStream&, const Sample&) { refuse_cuda(); }
void run(CudaStream&, const NextPosition&) { refuse_cuda(); }
void run(CudaStream&, const VocabMax&) { refuse_cuda(); }
void run(CudaStream&, const VocabSums&) { refuse_cuda(); }
void run(CudaStream&, const VocabLoss&) { refuse_cuda(); }

std::shared_ptr<GemmAlgorithms> make_gemm_algorithms(CudaStream&, GemmChoice) { refuse_cuda(); }
GemmAlgorithms& gemm_algorithms(CudaStream&) { refuse_cuda(); }
// NOLINTNEXTLINE(performance-unnecessary-value-param): the CUDA build stores it
void use_gemm_algorithms(CudaStream&, std::shared_ptr<GemmAlgorithms>) { refuse_cuda(); }
GemmTuning tune(CudaStream&, GemmAlgorithms&, const GemmScratch&) { refuse_cuda(); }
void load_gemm_kernels(CudaStream&, GemmAlgorithms&, std::span<const GemmSignature>, const GemmScratch&) {
  refuse_cuda();
}

}  // namespace megalith
