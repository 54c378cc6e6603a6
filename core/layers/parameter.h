// Trainable tensors. Layers ask a ParameterStore for them while the model is built; allocate() then gives each unit (a
// transformer block, the embedding, the head) flat buffers in which every parameter is a 256-byte aligned view: weights
// in the model's dtype, main gradients in theirs. The same element offsets hold for optimizer state.
//
// Of a unit that data-parallel ranks share out each holds a shard for good (ZeRO, arXiv:1910.02054). The whole is
// resident too, or there only while it is bound to a place of fsdp/: its parameters' views are null otherwise.
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

// Which part of each unit's flat buffers a data-parallel rank holds of what the ranks share out (ZeRO,
// arXiv:1910.02054): the rank-th of `ranks` equal parts. Numbers alone; peers are known to parallel/. One of one is the
// whole.
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
  // Of a buffer of `numel` elements, a multiple of `ranks`.
  Range range(std::int64_t numel) const { return {numel / ranks * rank, numel / ranks * (rank + 1)}; }
  Tensor of(const Tensor& flat) const {
    const Range own = range(flat.numel());
    return flat.slice(0, own.begin, own.size());
  }
  // What is held of `wanted`, elements of a buffer of `numel`; empty, and somewhere in it, where nothing is.
  Range clip(const Range& wanted, std::int64_t numel) const {
    const Range own = range(numel);
    const std::int64_t begin = std::clamp(wanted.begin, own.begin, own.end);
    return {begin, std::clamp(wanted.end, begin, own.end)};
  }
};

// Of a row of dim 0.
std::int64_t elements_of_row(const Shape& shape);

// Which ranks hold copies of a unit: those that share out the data, or, of experts, those with the same ones.
enum class UnitKind : std::uint8_t { kDense, kExperts };

enum class Initializer : std::uint8_t { kNormal, kOnes, kZeros };

// A tensor under the name that checkpoints and the gradient norm know. A fused parameter ([q; k; v]) has several, each
// the next `rows` of its dim 0.
struct LogicalTensor {
  std::string name;  // "decoder.layers.0.self_attention.linear_q.weight"
  std::int64_t rows = 0;
  Shape global_shape;              // of the whole model's tensor
  std::int64_t global_row = 0;     // where this rank's slice starts in it; rows beyond its end are padding
  std::int64_t global_column = 0;  // likewise in dim 1
  // Where a slice is not of neighbouring rows: stripes of so many neighbours, which begin so many rows of the whole
  // apart. 0: one stripe.
  std::int64_t stripe = 0;
  std::int64_t stripe_pitch = 0;
  // Under tensor parallelism: so many neighbouring ranks hold this same slice, each of them with a part of its gradient
  // or with all of it; one of them counts it in the gradient norm.
  int holders = 1;
  bool partial_gradient = false;
  bool counted = true;
  bool declared = false;  // set by ParameterStore::add: it was said what each rank holds

  std::int64_t live_rows() const;  // without padding
  std::int64_t global_row_of(std::int64_t row) const;
  // From `row` on, those that are neighbours in the whole too.
  std::int64_t neighbours(std::int64_t row) const { return stripe == 0 ? live_rows() - row : stripe - row % stripe; }
};

// Which part of a model a rank holds under tensor parallelism: numbers alone, peers are known to parallel/.
struct TensorSplit {
  int rank = 0;
  int ranks = 1;
  bool sequence = false;  // between the linears each rank holds a part of the microbatch's rows

  // A tensor that all ranks hold. Its gradient is the same on all of them, or, if partial, the sum of theirs.
  LogicalTensor shared(std::string name, bool partial_gradient) const {
    return {.name = std::move(name), .holders = ranks, .partial_gradient = partial_gradient, .counted = rank == 0};
  }
  // That of a layer which works on the rows between the linears: with sequence parallelism a rank sees a part of them.
  LogicalTensor shared_between_linears(std::string name) const { return shared(std::move(name), sequence); }
  // Which part of the rows, of equal parts.
  int row_part() const { return sequence ? rank : 0; }
};

struct Parameter {
  std::vector<LogicalTensor> parts;
  Shape shape;
  Initializer initializer = Initializer::kNormal;
  float init_std = 0;
  bool decay = true;       // weight decay applies: not to norms and biases
  bool one_write = false;  // backward_weight is one op on main_grad, which can overwrite it: no zeros needed before
  bool is_copy = false;    // of a weight that another pipeline stage holds: saved and counted there
  Parameter* tied_to = nullptr;  // shares that weight; this main_grad is a buffer of its own, added to the other once
  int unit = 0;
  std::int64_t offset = 0;  // elements into the unit's flat buffers

  Tensor weight;            // shape, model dtype
  Tensor main_grad;         // shape, fp32 | bf16; written only by backward_weight (and by LmHead's chunks, see there)
  bool overwrites = false;  // with one_write: main_grad holds nothing of value yet, backward_weight overwrites it

  const std::string& name() const { return parts.front().name; }
  std::int64_t row_elements() const { return elements_of_row(shape); }
  // The view of part i in a tensor of this parameter's shape.
  Tensor part_of(const Tensor& whole, std::size_t i) const;
};

struct ParameterUnit {
  std::string name;
  UnitKind kind = UnitKind::kDense;
  std::vector<Parameter*> parameters;  // without tied ones
  std::int64_t numel = 0;              // padded
  std::int64_t block = 0;              // shards are whole blocks of so many elements, and the norm adds them up
  FlatShard shard = {};                // what this rank holds for good
  FlatShard owned = {};                // what its optimizer updates: an equal part of the shard; left out: the shard
  bool resident_weights = true;        // the whole of them; else `weights` is null but while it is bound
  bool resident_gradients = true;      // likewise

  Tensor weights;                     // [numel] model dtype
  Tensor main_grads;                  // [numel] fp32 | bf16
  Tensor weight_shard;                // [numel / ranks], a part of `weights` where those are resident
  Tensor grad_shard;                  // likewise of `main_grads`; summed over the ranks once a step
  Tensor owned_weights, owned_grads;  // in them

  // Where the whole is from now on, with the parameters' views of it; a null tensor takes them away.
  void bind_weights(const Tensor& whole);
  void bind_gradients(const Tensor& whole);
  // As zeros in all of the gradients: what is not written once is filled, the rest overwritten.
  void begin_gradients(Stream& stream);
};

// Numbers beside the weights that steps change without a gradient and checkpoints hold; 0 at first.
struct ParameterBuffer {
  LogicalTensor part;  // one dim, whole on each rank
  Tensor values;       // fp32
};

class ParameterStore {
 public:
  // A logical tensor, which has the elements [begin, end) of the unit's flat buffers.
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
  // Fields parts, shape, initializer, init_std, decay, one_write are taken from `spec`. The reference stays valid.
  // Parts without a global shape are whole.
  Parameter& add(Parameter spec);
  Parameter& add_tied(Parameter& target);
  const ParameterBuffer& add_buffer(LogicalTensor part);  // stays valid

  // Of each unit what its shard, owned and resident_* say, which are set by now. Units are padded so that what a rank
  // owns is whole blocks, in which each parameter lies alike for any number of ranks. Gradients may be bf16 where the
  // weights are: each microbatch's sum is then rounded when it is added. Null: none, as nothing is trained.
  void allocate(MemoryPool& pool, DType dtype, std::optional<DType> main_grads_dtype = DType::kFp32);
  // Draws every weight that is resident from (seed, logical name, element index), so that no layout changes it.
  void initialize(Stream& stream, std::uint64_t seed);
  void zero_gradients(Stream& stream);
  // Adds the gradients of tied uses to their parameter's, once; after the last backward_weight of the step.
  void add_tied_gradients(Stream& stream);

  std::vector<ParameterUnit>& units() { return units_; }
  const std::vector<ParameterUnit>& units() const { return units_; }
  std::int64_t numel() const;  // of all parameters, without padding and ties
  // The weights' shards of all units whose weights are not resident, one behind the other; null where there are none.
  const Tensor& weight_shards() const { return weight_shards_; }
  const std::deque<ParameterBuffer>& buffers() const { return buffers_; }
  const Tensor& buffer_values() const { return buffer_values_; }  // of all buffers, one after the other

  // That each parameter says what the ranks of `split` hold of it: a slice (global_shape, and where it starts), or a
  // copy (TensorSplit::shared). One that does not would be saved, counted and updated as if it were this rank's alone.
  void check_split(const TensorSplit& split) const;

 private:
  std::deque<Parameter> parameters_;
  std::vector<ParameterUnit> units_;
  std::vector<Parameter*> tied_;
  Tensor weight_shards_;
  std::deque<ParameterBuffer> buffers_;
  Tensor buffer_values_;
};

// A whole tensor from host memory, for start-up and checkpoints: blocks the host.
// values.size() == tensor.numel(); converted to the tensor's dtype (fp32 or bf16). The tensor is contiguous.
void upload(Stream& stream, std::span<const float> values, const Tensor& tensor);

}  // namespace megalith
