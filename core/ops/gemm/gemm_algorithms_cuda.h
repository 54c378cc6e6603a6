// Selection of cuBLASLt's algorithms. Needs no CUDA header.
//   auto table = make_gemm_algorithms(stream, GemmChoice::kMeasured);
//   table->load(checkpoint's entries, "checkpoint ...");
//   use_gemm_algorithms(stream, table);              // for each stream of the rank that multiplies
//   ... the first step, eagerly: new signatures run with cuBLASLt's first answer ...
//   tune(stream, *table, {memory, bytes});           // on rank 0; send table->entries() to the others, who load() them
// Never used: TF32, and split-K that reduces by atomics or in the output's memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/device/cuda_stream.h"
#include "core/ops/gemm/gemm_algorithms.h"

namespace megalith {

// Creates a table for this stream's device and library.
std::shared_ptr<GemmAlgorithms> make_gemm_algorithms(CudaStream& stream, GemmChoice choice);
// Makes the stream's GEMMs use the table. Otherwise a stream creates a table with first answers.
void use_gemm_algorithms(CudaStream& stream, std::shared_ptr<GemmAlgorithms> table);
GemmAlgorithms& gemm_algorithms(CudaStream& stream);

struct GemmScratch {
  void* memory = nullptr;  // device, 256-byte aligned; contents are lost
  std::size_t bytes = 0;
};
struct GemmTuning {
  int measured = 0;
  int too_large = 0;          // signatures whose matrices exceed the scratch: they keep the first answer
  double first_seconds = 0;   // sum over measured signatures of one GEMM with the first answer
  double chosen_seconds = 0;  // same with the chosen one
};
// Measures all pending signatures on random data, chooses the fastest answers, and blocks the host (0.1 to 1 s a
// signature). Call outside of any capture, with an idle device. The arena serves as scratch between two steps.
GemmTuning tune(CudaStream& stream, GemmAlgorithms& table, const GemmScratch& scratch);
// Runs the table's algorithms of `signatures`, which it must have, once each, and waits. CUDA loads a kernel at its
// first use, and may then wait for all device work, such as a receive whose sender waits for this rank. Skips
// signatures whose matrices exceed the scratch.
void load_gemm_kernels(CudaStream& stream, GemmAlgorithms& table, std::span<const GemmSignature> signatures,
                       const GemmScratch& scratch);

}  // namespace megalith
