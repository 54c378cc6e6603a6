// Chooses cuBLASLt's algorithms. Needs no CUDA header.
//   auto table = make_gemm_algorithms(stream, GemmChoice::kMeasured);
//   table->load(checkpoint's entries, "checkpoint ...");
//   use_gemm_algorithms(stream, table);              // for each stream of the rank that multiplies
//   ... the first step, eagerly: signatures not seen before run with cuBLASLt's first answer ...
//   tune(stream, *table, {memory, bytes});           // on rank 0; send table->entries() to the others, who load() them
// Never used: split-K that reduces by atomics or in the output's own memory, and TF32.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/device/cuda_stream.h"
#include "core/ops/gemm/gemm_algorithms.h"

namespace megalith {

// A table for this stream's device and library.
std::shared_ptr<GemmAlgorithms> make_gemm_algorithms(CudaStream& stream, GemmChoice choice);
// The stream's GEMMs follow the table from here on. A stream that was given none makes first answers a table of its
// own.
void use_gemm_algorithms(CudaStream& stream, std::shared_ptr<GemmAlgorithms> table);
GemmAlgorithms& gemm_algorithms(CudaStream& stream);

struct GemmScratch {
  void* memory = nullptr;  // device, 256-byte aligned; what it held is lost
  std::size_t bytes = 0;
};
struct GemmTuning {
  int measured = 0;
  int too_large = 0;          // signatures whose matrices do not fit the scratch: they keep the first answer
  double first_seconds = 0;   // of one GEMM of each measured signature, with the first answer
  double chosen_seconds = 0;  // and with the chosen one
};
// Measures all pending signatures on random data, fastest answer first chosen, and blocks the host meanwhile (0.1 to 1
// s a signature). Outside of any capture; the device should be idle otherwise. The arena between two steps serves as
// scratch.
GemmTuning tune(CudaStream& stream, GemmAlgorithms& table, const GemmScratch& scratch);
// Runs the table's algorithms of `signatures`, which it has, once each, and waits for them: CUDA loads a kernel at its
// first use, and may wait for all that the device does, such as a receive whose sender waits for this rank. Leaves out
// those whose matrices do not fit the scratch.
void load_gemm_kernels(CudaStream& stream, GemmAlgorithms& table, std::span<const GemmSignature> signatures,
                       const GemmScratch& scratch);

}  // namespace megalith
