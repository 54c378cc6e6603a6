// Memory-bound. Forward: a warp owns a row, one pass. Backward: the rows are sorted by token (stable radix sort).
// Blocks process kChunk sorted rows each and add runs of equal tokens; a second kernel adds runs across chunks in
// ascending order. dy is read once (twice with positions), each touched row of d_table once. Deterministic, without
// atomics.
#include <cub/device/device_radix_sort.cuh>

#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/token/embedding.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kUnrolled = 4;

template <class T>
struct LookupArguments {
  const std::int32_t *verdict, *tokens, *start;
  const T *table, *positions;
  T* y;
  std::int64_t rows;
  std::int64_t first_token, vocabulary;  // bounds of the table
  int columns;
  FastDivide per_sample;
  std::int64_t first, gap;  // first position and gap
  unsigned half;            // row of a sample from which the gap counts
};

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(const LookupArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  start_early();
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= a.rows || *a.verdict != 0) return;
  const std::int64_t token = a.tokens[row] - a.first_token;
  const bool here = token >= 0 && token < a.vocabulary;
  const T* from = a.table + (here ? token : 0) * a.columns;
  const int columns = here ? a.columns : 0;  // columns to read
  const T* position = nullptr;
  if (a.positions != nullptr) {
    const std::int64_t start = a.start == nullptr ? 0 : *a.start;
    const unsigned row_of_sample = a.per_sample.remainder(static_cast<unsigned>(row));
    position = a.positions + (start + a.first + row_of_sample + (row_of_sample >= a.half ? a.gap : 0)) * a.columns;
  }
  T* y = a.y + row * a.columns;
  for (int tile = static_cast<int>(threadIdx.x % 32) * kWidth; tile < a.columns; tile += 32 * kWidth * kUnrolled) {
    uint4 raw[kUnrolled], added[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      raw[u] = load_of_row<T, kVector>(from, tile + u * 32 * kWidth, columns);
      if (position != nullptr) added[u] = load_of_row<T, kVector>(position, tile + u * 32 * kWidth, a.columns);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      if (position != nullptr) {
        Floats<T> v(raw[u]);
        v += Floats<T>(added[u]);
        raw[u] = v.packed();
      }
      store_of_row<T, kVector>(y, tile + u * 32 * kWidth, a.columns, raw[u]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) embedding_backward_number_rows_kernel(std::int32_t* rows, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) rows[i] = i;
}

constexpr int kLanes = 128;                                   // threads of a block: columns of a tile, in packs of dy
constexpr int kMaxChunk = static_cast<int>(kMaxSortedChunk);  // tokens and rows are in shared memory

struct GradientArguments {
  const std::int32_t *verdict, *tokens, *rows;  // sorted by token, then row
  const void* dy;
  void* d_table;
  float* partial;  // [chunks, 2, columns]: of the run that enters the chunk, of the run that leaves it
  int count, columns, chunk;
  std::int32_t first_token, vocabulary;  // bounds of the table
};

// Returns the row of the gradient, or -1 if the table has none.
__device__ inline std::int64_t row_of(std::int32_t token, const GradientArguments& a) {
  const std::int64_t row = std::int64_t{token} - a.first_token;
  return row < a.vocabulary ? row : -1;
}

// to[first ...] = sums, added to what is there with kAdd. G: dtype of the gradient.
template <class G, bool kVector, bool kAdd, class T>
__device__ inline void write_to(G* to, int first, int columns, const Floats<T>& sums) {
  if constexpr (kPack<T> < kPack<G>) {  // half a pack
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      if (first + j < columns) to[first + j] = narrow<G>(kAdd ? widen(to[first + j]) + sums[j] : sums[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kPack<T>; j += kPack<G>) {
      Floats<G> v;
      if constexpr (kAdd) v = Floats<G>(load_of_row<G, kVector>(to, first + j, columns));
#pragma unroll
      for (int i = 0; i < kPack<G>; ++i) v[i] = kAdd ? v[i] + sums[j + i] : sums[j + i];
      store_of_row<G, kVector>(to, first + j, columns, v.packed());
    }
  }
}

// A block owns a chunk of sorted rows and a tile of columns.
template <class T, class G, bool kVector>
__global__ void __launch_bounds__(kLanes) embedding_backward_kernel(const GradientArguments a) {
  constexpr int kWidth = kPack<T>;
  __shared__ std::int32_t tokens[kMaxChunk + 2], rows[kMaxChunk];  // tokens: also the two neighbors
  if (*a.verdict != 0) return;
  const int chunk = static_cast<int>(blockIdx.x);
  const int begin = chunk * a.chunk, count = min(a.chunk, a.count - begin);
  for (int i = static_cast<int>(threadIdx.x); i < count + 2; i += kLanes) {
    const int at = begin + i - 1;
    tokens[i] = at >= 0 && at < a.count ? a.tokens[at] : -1;
    if (i > 0 && i <= count) rows[i - 1] = a.rows[at];
  }
  __syncthreads();
  const int first = (static_cast<int>(blockIdx.y) * kLanes + static_cast<int>(threadIdx.x)) * kWidth;
  if (first >= a.columns) return;
  Floats<T> sums;
  bool came_in = tokens[0] == tokens[1];
  for (int i = 0; i < count; i += kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const bool live = i + u < count;
      const T* row = static_cast<const T*>(a.dy) + static_cast<std::int64_t>(live ? rows[i + u] : 0) * a.columns;
      raw[u] = load_of_row<T, kVector>(row, first, live ? a.columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      if (i + u >= count) break;
      sums += Floats<T>(raw[u]);
      const std::int32_t token = tokens[i + u + 1];
      const bool same_follows = tokens[i + u + 2] == token;
      if (same_follows && i + u + 1 < count) continue;
      if (came_in || same_follows) {
        float* partial = a.partial + (std::int64_t{chunk} * 2 + (came_in ? 0 : 1)) * a.columns;
        write_to<float, kVector, false>(partial, first, a.columns, sums);
      } else if (const std::int64_t row = row_of(token, a); row >= 0) {
        write_to<G, kVector, true>(static_cast<G*>(a.d_table) + row * a.columns, first, a.columns, sums);
      }
      came_in = false;
      sums = {};
    }
  }
}

// A block owns a tile of columns of the run that begins in a chunk and continues in the next, if there is one.
template <class G, bool kVector>
__global__ void __launch_bounds__(kLanes) embedding_backward_runs_kernel(const GradientArguments a) {
  if (*a.verdict != 0) return;
  const int chunk = static_cast<int>(blockIdx.x), begin = chunk * a.chunk, end = begin + a.chunk;
  if (end >= a.count) return;
  const std::int32_t token = a.tokens[end - 1];
  const bool continues = a.tokens[end] == token;
  const bool began_before = begin > 0 && a.tokens[begin - 1] == token;
  const std::int64_t row = row_of(token, a);
  if (!continues || began_before || row < 0) return;
  int followers = 0;  // chunks that begin with the token
  for (int found = kLanes; found == kLanes; followers += found) {
    const std::int64_t at = (std::int64_t{chunk} + 1 + followers + threadIdx.x) * a.chunk;
    found = __syncthreads_count(at < a.count && a.tokens[at] == token ? 1 : 0);
  }
  const int first = (static_cast<int>(blockIdx.y) * kLanes + static_cast<int>(threadIdx.x)) * 4;
  if (first >= a.columns) return;
  const auto partial = [&](std::int64_t number) {
    return Floats<float>(load_of_row<float, kVector>(a.partial + number * a.columns, first, a.columns));
  };
  Floats<float> sums = partial(std::int64_t{chunk} * 2 + 1);
#pragma unroll 8
  for (int i = 1; i <= followers; ++i) sums += partial((std::int64_t{chunk} + i) * 2);
  write_to<G, kVector, true>(static_cast<G*>(a.d_table) + row * a.columns, first, a.columns, sums);
}

// A block owns a position and a tile of columns; it adds the samples in ascending order.
template <class T, class G, bool kVector>
__global__ void __launch_bounds__(kLanes)
    embedding_backward_positions_kernel(const std::int32_t* verdict, const T* dy, G* d_positions, std::int64_t rows,
                                        std::int64_t rows_per_sample, int columns, SequencePart part) {
  constexpr int kWidth = kPack<T>;
  const int first = (static_cast<int>(blockIdx.y) * kLanes + static_cast<int>(threadIdx.x)) * kWidth;
  if (first >= columns || *verdict != 0) return;
  Floats<T> sums;
  for (std::int64_t row = blockIdx.x; row < rows; row += rows_per_sample * kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = row + u * rows_per_sample;
      raw[u] = load_of_row<T, kVector>(dy + at * columns, first, at < rows ? columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      sums += Floats<T>(raw[u]);
    }
  }
  const std::int64_t position = part.first + blockIdx.x + (blockIdx.x >= rows_per_sample / 2 ? part.gap : 0);
  write_to<G, kVector, true>(d_positions + position * columns, first, columns, sums);
}

std::int64_t vocabulary_of(std::int64_t vocabulary, const Tensor& table) {
  return vocabulary == 0 ? table.size(0) : vocabulary;
}

template <class Op>
const std::int32_t* check_tokens(CudaStream& stream, const Op& op, const Tensor& table, const Tensor& positions,
                                 const std::int32_t* start) {
  const std::int64_t rows = op.tokens.numel(), last = std::min(rows, op.rows_per_sample) - 1;
  require(rows < kMaxIndex && table.size(1) < kMaxIndex / 2, "embedding: more than 2^31 rows or columns");
  return check_indices(stream,
                       {.index = op.tokens.template as<const std::int32_t>(),
                        .count = rows,
                        .limit = vocabulary_of(op.vocabulary, table),
                        .raise = raise_bad_token,
                        .positions = positions ? positions.size(0) : -1,
                        .span = last < 0 ? 0 : op.part.position(last, op.rows_per_sample) + 1,
                        .start = positions ? start : nullptr},
                       op.workspace);
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Sorts the tokens with their row numbers into the workspace, after the verdict; the partial sums follow.
GradientArguments sort_tokens(CudaStream& stream, const EmbeddingBackward& op, const std::int32_t* verdict) {
  const std::int64_t count = op.tokens.numel();
  const auto vocabulary = static_cast<std::uint64_t>(vocabulary_of(op.vocabulary, op.d_table));
  const int bits = std::bit_width(std::max<std::uint64_t>(vocabulary, 2) - 1);
  const std::size_t array = rounded_up(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  const auto number = static_cast<int>(count);
  const auto sort = [&](void* temporary, std::size_t& bytes, std::int32_t* numbers, std::int32_t* tokens,
                        std::int32_t* rows) {
    MEGALITH_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(temporary, bytes, op.tokens.as<const std::int32_t>(), tokens,
                                                        numbers, rows, number, 0, bits, stream.handle()));
  };
  std::size_t temporary_bytes = 0;
  sort(nullptr, temporary_bytes, nullptr, nullptr, nullptr);

  std::size_t used = kVerdictBytes;
  const auto take = [&](std::size_t bytes) {
    std::byte* result = op.workspace.as<std::byte>() + used;
    used += rounded_up(bytes);
    require(used <= op.workspace.bytes(), "EmbeddingBackward: cub sorts with more memory than workspace_bytes allows");
    return result;
  };
  auto* tokens = reinterpret_cast<std::int32_t*>(take(array));
  auto* rows = reinterpret_cast<std::int32_t*>(take(array));
  auto* numbers = reinterpret_cast<std::int32_t*>(take(array));
  void* temporary = take(temporary_bytes);
  launch_kernel(stream, {blocks_for(count, kThreads), kThreads}, embedding_backward_number_rows_kernel, numbers,
                number);
  sort(temporary, temporary_bytes, numbers, tokens, rows);

  // Longer chunks if the partial sums would be large.
  std::int64_t chunk = min_sorted_chunk(count);
  const auto partial_bytes = [&] {
    return static_cast<std::size_t>(ceil_divide(count, chunk) * 2 * op.d_table.size(1)) * sizeof(float);
  };
  while (chunk < kMaxSortedChunk && used + rounded_up(partial_bytes()) > kEmbeddingWorkspaceBytes) chunk *= 2;
  return {.verdict = verdict,
          .tokens = tokens,
          .rows = rows,
          .dy = op.dy.data,
          .d_table = op.d_table.data,
          .partial = reinterpret_cast<float*>(take(partial_bytes())),
          .count = number,
          .columns = static_cast<int>(op.d_table.size(1)),
          .chunk = static_cast<int>(chunk),
          .first_token = static_cast<std::int32_t>(op.first_token),
          .vocabulary = static_cast<std::int32_t>(op.d_table.size(0))};
}

template <class T, class G, bool kVector>
void launch_gradients(CudaStream& stream, const EmbeddingBackward& op, const GradientArguments& a) {
  const std::int64_t rows = op.tokens.numel();
  const unsigned tiles = blocks_for(a.columns, kLanes * kPack<T>), tiles_of_runs = blocks_for(a.columns, kLanes * 4);
  const auto chunks = static_cast<unsigned>(ceil_divide(rows, a.chunk));
  launch_kernel(stream, {dim3(chunks, tiles), kLanes}, embedding_backward_kernel<T, G, kVector>, a);
  launch_kernel(stream, {dim3(chunks, tiles_of_runs), kLanes}, embedding_backward_runs_kernel<G, kVector>, a);
  if (!op.d_positions) return;
  const auto positions = static_cast<unsigned>(std::min(rows, op.rows_per_sample));
  launch_kernel(stream, {dim3(positions, tiles), kLanes}, embedding_backward_positions_kernel<T, G, kVector>, a.verdict,
                op.dy.as<const T>(), op.d_positions.as<G>(), rows, op.rows_per_sample, a.columns, op.part);
}

}  // namespace

void run(CudaStream& stream, const EmbeddingForward& op) {
  const std::int32_t* verdict = check_tokens(stream, op, op.table, op.positions, op.start);
  const std::int64_t rows = op.tokens.numel();
  const bool vector = rows_aligned(op.table, op.positions, op.y);
  Variants(op.table.dtype, vector).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    const LookupArguments<T> a{.verdict = verdict,
                               .tokens = op.tokens.as<const std::int32_t>(),
                               .start = op.start,
                               .table = op.table.as<const T>(),
                               .positions = op.positions.as<const T>(),
                               .y = op.y.as<T>(),
                               .rows = rows,
                               .first_token = op.first_token,
                               .vocabulary = op.table.size(0),
                               .columns = static_cast<int>(op.table.size(1)),
                               .per_sample = FastDivide(std::min(op.rows_per_sample, kMaxIndex - 1)),
                               .first = op.part.first,
                               .gap = op.part.gap,
                               .half = static_cast<unsigned>(std::min(op.rows_per_sample / 2, kMaxIndex))};
    launch_early(stream, {blocks_for(rows, kThreads / 32), kThreads}, embedding_forward_kernel<T, is_vector()>, a);
  });
}

void run(CudaStream& stream, const EmbeddingBackward& op) {
  const std::int32_t* verdict = check_tokens(stream, op, op.d_table, op.d_positions, nullptr);
  if (op.tokens.numel() == 0 || op.d_table.size(1) == 0) return;
  const GradientArguments a = sort_tokens(stream, op, verdict);
  const bool vector = rows_aligned(op.dy, op.d_table, op.d_positions);
  Variants(op.dy.dtype, vector, op.d_table.dtype == DType::kFp32).visit([&](auto type, auto is_vector, auto is_wide) {
    using T = decltype(type);
    launch_gradients<T, std::conditional_t<is_wide(), float, T>, is_vector()>(stream, op, a);
  });
}

}  // namespace megalith
