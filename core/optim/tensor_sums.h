// Sums over a store's tensors: squares or zeros of the elements, first over pieces, then by tensor. A piece depends on
// the model alone, and one rank owns it; see AdamWOptimizer. Ranks add them exactly, since all others give 0.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/layers/parameter.h"
#include "core/memory/memory_pool.h"
#include "core/ops/optim/grad_norm.h"

namespace megalith {

// Names of the tensors that are summed.
struct SummedNames {
  // Logical names of all parameters and of all experts' parameters of the model, if the store holds only a part.
  // If both are empty, the store holds all parameters.
  std::vector<std::string> all_names = {}, all_expert_names = {};
  // Index of this rank among the `expert_parts` ranks that hold parts of the experts' tensors.
  int expert_part = 0, expert_parts = 1;
};

class TensorSums {
 public:
  using Values = std::function<const Tensor&(std::size_t unit)>;  // elements of a unit that this rank owns
  // `owner` labels the memory. `zeros`: counts of zeros instead of sums of squares.
  TensorSums(const ParameterStore& store, MemoryPool& pool, const SummedNames& of, const Values& values,
             const char* owner, bool zeros = false);

  // Sums over the pieces that the store holds. Pieces of other owners are 0, so the sum of pieces() over the owners is
  // exact.
  void sum(Stream& stream) const;
  const Tensor& pieces() const { return add_pieces_.pieces; }  // fp64, pieces of experts last
  Tensor pieces(UnitKind kind) const { return of_kind(pieces(), dense_pieces_, kind); }
  // Adds the pieces of all ranks by tensor, in the order of all names. Experts come last, part after part. Names that
  // the store does not hold give 0, so a sum over ranks of other parameters is exact.
  void add_pieces(Stream& stream) const;
  const Tensor& tensors() const { return add_pieces_.out; }  // [names + expert names x parts] fp64
  Tensor tensors(UnitKind kind) const { return of_kind(tensors(), dense_names_, kind); }

 private:
  static Tensor of_kind(const Tensor& all, std::int64_t dense, UnitKind kind) {
    return kind == UnitKind::kDense ? all.slice(0, 0, dense) : all.slice(0, dense, all.size(0) - dense);
  }

  std::int64_t dense_pieces_ = 0, dense_names_ = 0;
  SumOfSquares sum_;  // over the logical tensors
  AddPieces add_pieces_;
  bool has_shards_ = false;  // or padding: some pieces have no elements here
};

}  // namespace megalith
