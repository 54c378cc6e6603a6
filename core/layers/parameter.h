// Trainable tensors. Layers request them from a ParameterStore while the model is built. allocate() then gives each
// unit (a transformer block, the embedding, the head) flat buffers: weights in the model's dtype, and main gradients.
// Each parameter is a 256-byte aligned view of them. Optimizer state uses the same element offsets.
//
// Data-parallel ranks hold a permanent shard each of a sharded unit (ZeRO, arXiv:1910.02054). The unsharded unit is
// resident too, or exists only while bound to a unit slot of fsdp/; the parameters' views are null otherwise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/memory/memory_pool.h"
#include "core/tensor/tensor.h"

namespace megalith {

// A data-parallel rank's shard of each unit's flat buffers: the rank-th of `ranks` equal parts. The struct has numbers
// only; parallel/ has the communicators. One rank of one holds everything.
struct FlatShard {
  int rank = 0;
  int ranks = 1;

  // Elements [begin, end) of a unit's buffer.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };

  bool is_whole() const { return ranks == 1; }
  // Returns the shard of a buffer of `numel` elements, a multiple of `ranks`.
  Range range(std::int64_t numel) const { return {numel / ranks * rank, numel / ranks * (rank + 1)}; }
  Tensor of(const Tensor& flat) const {
    const Range own = range(flat.numel());
    return flat.slice(0, own.begin, own.size());
  }
  // Returns the shard's part of `wanted`, elements of a buffer of `numel`; possibly empty.
  Range clip(const Range& wanted, std::int64_t numel) const {
    const Range own = range(numel);
    const std::int64_t begin = std::clamp(wanted.begin, own.begin, own.end);
    return {begin, std::clamp(wanted.end, begin, own.end)};
  }
};

// Returns the elements of a row of dim 0.
std::int64_t elements_of_row(const Shape& shape);

// Set of ranks that hold copies of a unit: all data-parallel ranks, or those with the same experts.
enum class UnitKind : std::uint8_t { kDense, kExperts };

enum class Initializer : std::uint8_t { kNormal, kOnes, kZeros };

// A tensor under its name in checkpoints and in the gradient norm. A fused parameter ([q; k; v]) has several, each the
// next `rows` of its dim 0.
struct LogicalTensor {
  std::string name;  // "decoder.layers.0.self_attention.linear_q.weight"
  std::int64_t rows = 0;
  Shape global_shape;              // shape of the unsharded tensor
  std::int64_t global_row = 0;     // first row of this rank's slice; rows beyond the tensor's end are padding
  std::int64_t global_column = 0;  // first column of this rank's slice
  // Rows of a stripe, if the slice is not contiguous. In the unsharded tensor a stripe begins every `stripe_pitch`
  // rows. 0: one stripe.
  std::int64_t stripe = 0;
  std::int64_t stripe_pitch = 0;
  // Number of neighboring tensor-parallel ranks with this slice, each with a part of its gradient or all of it. One of
  // them counts it in the gradient norm.
  int holders = 1;
  bool partial_gradient = false;
  bool counted = true;
  bool declared = false;  // set by ParameterStore::add: the split is declared

  std::int64_t live_rows() const;  // rows without padding
  std::int64_t global_row_of(std::int64_t row) const;
  // Returns the rows from `row` on that are also neighbors in the unsharded tensor.
  std::int64_t neighbours(std::int64_t row) const { return stripe == 0 ? live_rows() - row : stripe - row % stripe; }
};

// A rank's place in tensor parallelism. The struct has numbers only; parallel/ has the communicators.
struct TensorSplit {
  int rank = 0;
  int ranks = 1;
  bool sequence = false;  // sequence parallelism: each rank holds a part of the rows between the linears

  // Returns a tensor that all ranks hold. Its gradient is equal on all ranks or, if partial, the sum over ranks.
  LogicalTensor shared(std::string name, bool partial_gradient) const {
    return {.name = std::move(name), .holders = ranks, .partial_gradient = partial_gradient, .counted = rank == 0};
  }
  // Returns a tensor of a layer between the linears. With sequence parallelism a rank has a part of the rows.
  LogicalTensor shared_between_linears(std::string name) const { return shared(std::move(name), sequence); }
  // Returns the index among equal parts of the rows.
  int row_part() const { return sequence ? rank : 0; }
};

struct Parameter {
  std::vector<LogicalTensor> parts;
  Shape shape;
  Initializer initializer = Initializer::kNormal;
  float init_std = 0;
  bool decay = true;       // weight decay applies: not to norms and biases
  bool one_write = false;  // backward_weight is one op on main_grad and can overwrite it, so that no zeros are needed
  bool is_copy = false;    // copy of another pipeline stage's weight, which is saved and counted there
  Parameter* tied_to = nullptr;  // owner of a shared weight; this separate main_grad is added to the owner's once
  int unit = 0;
  std::int64_t offset = 0;  // elements into the unit's flat buffers

  Tensor weight;            // shape, model dtype
  Tensor main_grad;         // shape, fp32 | bf16; written only by backward_weight (and by LmHead's chunks)
  bool overwrites = false;  // with one_write: main_grad is undefined until backward_weight overwrites it

  const std::string& name() const { return parts.front().name; }
  std::int64_t row_elements() const { return elements_of_row(shape); }
  // Returns the view of part i in a tensor of this parameter's shape.
  Tensor part_of(const Tensor& whole, std::size_t i) const;
};

struct ParameterUnit {
  std::string name;
  UnitKind kind = UnitKind::kDense;
  std::vector<Parameter*> parameters;  // without tied ones
  std::int64_t numel = 0;              // padded
  std::int64_t block = 0;              // elements of a block: a shard is a multiple, and the norm sums by block
  FlatShard shard = {};                // this rank's permanent shard
  FlatShard owned = {};                // part that its optimizer updates; default: the shard
  bool resident_weights = true;        // all weights are resident; otherwise `weights` is null unless bound
  bool resident_gradients = true;      // same for gradients

  Tensor weights;                     // [numel] model dtype
  Tensor main_grads;                  // [numel] fp32 | bf16
  Tensor weight_shard;                // [numel / ranks], part of `weights` if those are resident
  Tensor grad_shard;                  // [numel / ranks], same for `main_grads`; summed over the ranks once a step
  Tensor owned_weights, owned_grads;  // views of the shards

  // Binds the unsharded tensor and the parameters' views of it; a null tensor unbinds them.
  void bind_weights(const Tensor& whole);
  void bind_gradients(const Tensor& whole);
  // Starts gradients as zeros: fills all except one_write parameters, which are overwritten.
  void begin_gradients(Stream& stream);
};

// Values without gradient that steps change and checkpoints hold; initially 0.
struct ParameterBuffer {
  LogicalTensor part;  // one dim, unsharded on each rank
  Tensor values;       // fp32
};

class ParameterStore {
 public:
  // A logical tensor at elements [begin, end) of the unit's flat buffers.
  struct Held {
    const ParameterUnit& unit;
    const Parameter& parameter;
    const LogicalTensor& part;
    std::int64_t begin, end;
  };
  template <class Visit>
  void for_each_part(Visit&& visit) const {
    for (const ParameterUnit& unit : units_) {
      for (const Parameter* parameter : unit.parameters) {
        std::int64_t end = parameter->offset;
        for (const LogicalTensor& part : parameter->parts) {
          const std::int64_t begin = end;
          end += part.rows * parameter->row_elements();
          visit(Held{unit, *parameter, part, begin, end});
        }
      }
    }
  }

  void begin_unit(std::string name, UnitKind kind = UnitKind::kDense);
  // Adds a parameter. Uses the fields parts, shape, initializer, init_std, decay, one_write of `spec`. The reference
  // stays valid. Parts without a global shape are unsharded.
  Parameter& add(Parameter spec);
  Parameter& add_tied(Parameter& target);
  const ParameterBuffer& add_buffer(LogicalTensor part);  // reference stays valid

  // Allocates each unit according to its shard, owned and resident_*, which must be set. Padding makes a rank's owned
  // part whole blocks, in which each parameter has the same position for any number of ranks. Gradients may be bf16 if
  // the weights are: each microbatch's sum is then rounded when it is added. Null: no gradients.
  void allocate(MemoryPool& pool, DType dtype, std::optional<DType> main_grads_dtype = DType::kFp32);
  // Draws every resident weight from (seed, logical name, element index), independently of the layout.
  // `xavier`: uniform numbers of Glorot & Bengio 2010, section 4.2.1, by the fans of the unsharded parameter, instead
  // of normal numbers of init_std.
  void initialize(Stream& stream, std::uint64_t seed, bool xavier = false);
  void zero_gradients(Stream& stream);
  // Adds the gradients of tied uses to their parameter's, once, after the last backward_weight of the step.
  void add_tied_gradients(Stream& stream);

  std::vector<ParameterUnit>& units() { return units_; }
  const std::vector<ParameterUnit>& units() const { return units_; }
  std::int64_t numel() const;  // elements of all parameters, without padding and ties
  // Returns the concatenated weight shards of all units without resident weights; null if there are none.
  const Tensor& weight_shards() const { return weight_shards_; }
  const std::deque<ParameterBuffer>& buffers() const { return buffers_; }
  const Tensor& buffer_values() const { return buffer_values_; }  // all buffers, concatenated

  // Checks that each parameter declares what the ranks of `split` hold: a slice (global_shape and its start) or a copy
  // (TensorSplit::shared). An undeclared one would be saved, counted and updated as if no other rank held it.
  void check_split(const TensorSplit& split) const;

 private:
  std::deque<Parameter> parameters_;
  std::vector<ParameterUnit> units_;
  std::vector<Parameter*> tied_;
  Tensor weight_shards_;
  std::deque<ParameterBuffer> buffers_;
  Tensor buffer_values_;
};

// Copies a full tensor from host memory, for start-up and checkpoints; blocks the host. values.size() ==
// tensor.numel(). Converts to the tensor's dtype (fp32 or bf16). The tensor is contiguous.
void upload(Stream& stream, std::span<const float> values, const Tensor& tensor);

}  // namespace megalith
