// Log-likelihood of continuations: packs of sequences, each a document of one forward pass without a KV cache. The rows
// of a pass and the number of documents are fixed, so all passes have one plan. Experts have no capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/generate/inference_model.h"
#include "core/memory/host_arena.h"

namespace megalith {

struct ScoredSequence {
  std::vector<std::int32_t> tokens;  // context, then continuation; row i of the pass predicts tokens[i + 1]
  std::int64_t context = 1;          // tokens of the context, at least 1 and below the number of tokens
  std::int64_t cut = 0;              // tokens that were cut at the start of the context

  std::int64_t rows() const { return std::ssize(tokens) - 1; }
};

class Scorer {
 public:
  struct Sizes {
    std::int64_t rows = 0;       // T of a pass
    std::int64_t documents = 0;  // sequences of a pass
  };

  // Arguments as for InferenceModel.
  Scorer(const Options& options, DeviceType device, const Sizes& sizes, Communicator* ranks = nullptr,
         Instruments instruments = {});

  // Memory of a scorer on each of a number of ranks.
  static InferenceBytes bytes(const Options& options, const Sizes& sizes, int ranks);

  ParameterStore& parameters() { return model_.parameters(); }
  Stream& compute() { return model_.compute(); }

  // Sums the log-likelihoods of each sequence's continuation, in fp64 and in order. The sequences' rows fit a pass.
  // A sequence's result does not depend on the others; on CUDA in bf16 up to rounding.
  std::vector<double> score(std::span<const ScoredSequence* const> pack);

 private:
  std::int64_t entries() const { return sizes_.documents + 1; }  // and one of the rows that are left
  std::size_t num_values() const { return static_cast<std::size_t>(3 * sizes_.rows + 2 * entries()); }
  void fill(std::span<const ScoredSequence* const> pack);
  void enqueue();
  ArenaPlan plan() const;

  const Options& options_;
  Sizes sizes_;
  InferenceModel model_;
  HostArena host_;
  std::int32_t* host_values_;  // tokens, labels and positions of T rows each, then begins and lengths of documents
  float* host_losses_;
  ArenaPlan plan_;
};

}  // namespace megalith
