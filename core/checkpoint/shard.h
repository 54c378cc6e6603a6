// Named shards: what a checkpoint is made of. A tensor of the model has one logical name and one global shape whatever
// the layout of the run; a shard is the part of it that one rank holds. A name starts with the kind of the tensor:
//   param/NAME       the weight in the dtype the model computes with
//   main_param/NAME  the fp32 copy that the optimizer updates, where the weight is not fp32 itself
//   exp_avg/NAME, exp_avg_sq/NAME   Adam's first and second moment, fp32 | bf16
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace megalith {

inline constexpr std::string_view kParamKind = "param";
inline constexpr std::string_view kMainParamKind = "main_param";
inline constexpr std::string_view kExpAvgKind = "exp_avg";
inline constexpr std::string_view kExpAvgSqKind = "exp_avg_sq";

// "exp_avg" and "layers.0.mlp.fc1.weight" make "exp_avg/layers.0.mlp.fc1.weight".
std::string shard_name(std::string_view kind, std::string_view parameter);
// The part of a name before the first '/', or "" when there is none.
std::string_view kind_of(std::string_view name);

// A part of a tensor: either a box (start and stop per dim) or, for flat parameter buffers that cut tensors anywhere, a
// range of elements of the row-major flattened tensor.
struct Slice {
  bool flat = false;
  std::vector<std::int64_t> start;  // a box: one per dim; flat: one element
  std::vector<std::int64_t> stop;   // exclusive

  static Slice whole(const Shape& shape);
  static Slice box(std::vector<std::int64_t> start, std::vector<std::int64_t> stop);
  static Slice range(std::int64_t start, std::int64_t stop);

  std::vector<std::int64_t> extents() const;
  std::int64_t numel() const;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// "[0:4,2:3]" for a box, "flat[0:100]" for a range.
std::string to_string(const Slice& slice);

struct TensorSpec {
  std::string name;  // with its kind
  DType dtype = DType::kFp32;
  Shape shape;  // global
};

struct Shard {
  std::string name;  // with its kind
  DType dtype = DType::kFp32;
  Shape shape;                      // global
  Slice slice;                      // what `data` holds of it
  std::span<const std::byte> data;  // host memory, row-major, slice.numel() * size_of(dtype) bytes
};

// The text of to_string back; nothing for any other text.
std::optional<Slice> slice_from_string(std::string_view text);

// Bytes of a shape by checked multiplication; nothing when they overflow 63 bits.
std::optional<std::int64_t> checked_bytes(const Shape& shape, DType dtype);

// Why `slice` is not a slice of `shape`, or "".
std::string slice_problem(const Shape& shape, const Slice& slice);

// The boxes that elements [begin, end) of the flattened tensor consist of, in ascending order; at most 2 per dim.
std::vector<Slice> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end);

// The elements that two valid slices of one shape have in common, as runs contiguous in both, in ascending order.
struct CommonRun {
  std::int64_t a_offset;  // first element, counted from the start of slice a
  std::int64_t b_offset;  // the same element, counted from the start of slice b
  std::int64_t count;     // elements, > 0
};
std::vector<CommonRun> common_runs(const Shape& shape, const Slice& a, const Slice& b);

// Why valid `slices` do not cover each element of `shape` exactly once, or "". For files from anywhere: it takes at
// most kMaxComparisons comparisons a slice, whatever their sizes; what would take more is refused. Neither ranges, nor
// boxes cut along one dim, nor grids of up to 2^16 boxes come near it.
inline constexpr std::size_t kMaxComparisons = 256;
std::string cover_problem(const Shape& shape, std::span<const Slice> slices);

// Which of `world` ranks writes each of these shards, for shards that every one of these ranks holds. Balanced by bytes
// (largest first, to the least loaded rank, ties to the lowest), and a function of the list alone, so that all ranks
// that pass the same list get the same answer.
std::vector<int> assign_writers(std::span<const Shard> shards, int world);

}  // namespace megalith
