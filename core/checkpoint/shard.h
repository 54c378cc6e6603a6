// Named shards, the content of a checkpoint. A tensor of the model has one logical name and one global shape in every
// layout of a run; a shard is one rank's part of it. A name starts with the kind of the tensor:
//   param/NAME       the weight in the dtype that the model computes with
//   main_param/NAME  the optimizer's fp32 copy, if the weight is not fp32
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

// Joins "exp_avg" and "layers.0.mlp.fc1.weight" to "exp_avg/layers.0.mlp.fc1.weight".
std::string shard_name(std::string_view kind, std::string_view parameter);
// Returns the part of a name ahead of the first '/'; "" without a '/'.
std::string_view kind_of(std::string_view name);

// Part of a tensor: a box (start and stop per dim), or a range of elements of the row-major flattened tensor.
// Flat parameter buffers cut tensors at any element, so they need ranges.
struct Slice {
  bool flat = false;
  std::vector<std::int64_t> start;  // box: one per dim; flat: one element
  std::vector<std::int64_t> stop;   // exclusive

  static Slice whole(const Shape& shape);
  static Slice box(std::vector<std::int64_t> start, std::vector<std::int64_t> stop);
  static Slice range(std::int64_t start, std::int64_t stop);

  std::vector<std::int64_t> extents() const;
  std::int64_t numel() const;
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Formats a box as "[0:4,2:3]" and a range as "flat[0:100]".
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
  Slice slice;                      // part of the tensor in `data`
  std::span<const std::byte> data;  // host memory, row-major, slice.numel() * size_of(dtype) bytes
};

// Parses the text of to_string; none for any other text.
std::optional<Slice> slice_from_string(std::string_view text);

// Returns the bytes of a shape; none if they overflow 63 bits.
std::optional<std::int64_t> checked_bytes(const Shape& shape, DType dtype);

// Returns why `slice` is not a slice of `shape`, or "".
std::string slice_problem(const Shape& shape, const Slice& slice);

// Returns the boxes that cover elements [begin, end) of the flattened tensor, in ascending order; at most 2 per dim.
std::vector<Slice> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end);

// Run of elements that two valid slices of one shape share, contiguous in both. common_runs lists them ascending.
struct CommonRun {
  std::int64_t a_offset;  // first element, counted from the start of slice a
  std::int64_t b_offset;  // the same element, counted from the start of slice b
  std::int64_t count;     // elements, > 0
};
std::vector<CommonRun> common_runs(const Shape& shape, const Slice& a, const Slice& b);

// Returns why valid `slices` do not cover each element of `shape` exactly once, or "". The work is bounded for
// untrusted files: slices that need more than kMaxComparisons comparisons each are rejected. Ranges, boxes cut along
// one dim, and grids of up to 2^16 boxes need far fewer.
inline constexpr std::size_t kMaxComparisons = 256;
std::string cover_problem(const Shape& shape, std::span<const Slice> slices);

// Assigns a writer among `world` ranks to each shard, for shards that all of these ranks hold. The assignment balances
// bytes: largest first, to the least loaded rank, ties to the lowest rank. The result depends only on the list, so
// ranks with equal lists get equal results.
std::vector<int> assign_writers(std::span<const Shard> shards, int world);

}  // namespace megalith
