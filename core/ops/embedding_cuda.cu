// Memory-bound. Forward: a warp owns a row, one pass. Backward: the rows are sorted by token (stable radix sort), and
// blocks walk kChunk sorted rows each, adding up the runs of equal tokens; what a run has in several chunks is added by
// a second kernel in ascending order. dy is read once (twice with positions), each touched row of d_table once.
// Deterministic, without atomics.
#include <cub/device/device_radix_sort.cuh>

#include "core/ops/cuda_indices.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/data_faults.h"
#include "core/ops/embedding.h"

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
  std::int64_t first_token, vocabulary;  // of the table
  int columns;
  FastDivide per_sample;
  std::int64_t first, gap;  // of the positions
  unsigned half;            // row of a sample from which on the gap counts
};

template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) look_up(const LookupArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= a.rows || *a.verdict != 0) return;
  const std::int64_t token = a.tokens[row] - a.first_token;
  const bool here = token >= 0 && token < a.vocabulary;
  const T* from = a.table + (here ? token : 0) * a.columns;
  const int columns = here ? a.columns : 0;  // to be read
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
        float v[kWidth], w[kWidth];
        unpack<T>(raw[u], v);
        unpack<T>(added[u], w);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v[j] += w[j];
        raw[u] = pack<T>(v);
      }
      store_of_row<T, kVector>(y, tile + u * 32 * kWidth, a.columns, raw[u]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) number_rows(std::int32_t* rows, int count) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) rows[i] = i;
}

constexpr int kLanes = 128;                                   // threads of a block: columns of a tile, in packs of dy
constexpr int kMaxChunk = static_cast<int>(kMaxSortedChunk);  // a block keeps their tokens and numbers in shared memory

struct GradientArguments {
  const std::int32_t *verdict, *tokens, *rows;  // sorted by token, then row
  const void* dy;
  void* d_table;
  float* partial;  // [chunks, 2, columns]: of the run that came in, of the run that goes on
  int count, columns, chunk;
  std::int32_t first_token, vocabulary;  // of the table
};

// The row of the gradient, or -1 where the table has none.
__device__ inline std::int64_t row_of(std::int32_t token, const GradientArguments& a) {
  const std::int64_t row = std::int64_t{token} - a.first_token;
  return row < a.vocabulary ? row : -1;
}

// to[first ...] += sums. G: dtype of the gradient.
template <class G, bool kVector, int kWidth>
__device__ inline void add_to(G* to, int first, int columns, const float (&sums)[kWidth]) {
  if constexpr (kWidth < kPack<G>) {  // half a pack
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (first + j < columns) to[first + j] = narrow<G>(widen(to[first + j]) + sums[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; j += kPack<G>) {
      float v[kPack<G>];
      unpack<G>(load_of_row<G, kVector>(to, first + j, columns), v);
#pragma unroll
      for (int i = 0; i < kPack<G>; ++i) v[i] += sums[j + i];
      store_of_row<G, kVector>(to, first + j, columns, pack<G>(v));
    }
  }
}

template <class T, bool kVector>
__device__ inline void put(float* to, int first, int columns, const float (&sums)[kPack<T>]) {
#pragma unroll
  for (int j = 0; j < kPack<T>; j += 4) {
    const float v[4] = {sums[j], sums[j + 1], sums[j + 2], sums[j + 3]};
    store_of_row<float, kVector>(to, first + j, columns, pack<float>(v));
  }
}

// A block owns a chunk of sorted rows and a tile of columns.
template <class T, class G, bool kVector>
__global__ void __launch_bounds__(kLanes) add_chunks(const GradientArguments a) {
  constexpr int kWidth = kPack<T>;
  __shared__ std::int32_t tokens[kMaxChunk + 2], rows[kMaxChunk];  // tokens: also the one before and the one after
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
  float sums[kWidth] = {};
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
      float v[kWidth];
      unpack<T>(raw[u], v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[j] += v[j];
      const std::int32_t token = tokens[i + u + 1];
      const bool same_follows = tokens[i + u + 2] == token;
      if (same_follows && i + u + 1 < count) continue;
      if (came_in || same_follows) {
        put<T, kVector>(a.partial + (std::int64_t{chunk} * 2 + (came_in ? 0 : 1)) * a.columns, first, a.columns, sums);
      } else if (const std::int64_t row = row_of(token, a); row >= 0) {
        add_to<G, kVector>(static_cast<G*>(a.d_table) + row * a.columns, first, a.columns, sums);
      }
      came_in = false;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[j] = 0;
    }
  }
}

// A block owns the run that begins in a chunk and goes on into the next, if there is one, and a tile of columns.
template <class G, bool kVector>
__global__ void __launch_bounds__(kLanes) add_runs(const GradientArguments a) {
  if (*a.verdict != 0) return;
  const int chunk = static_cast<int>(blockIdx.x), begin = chunk * a.chunk, end = begin + a.chunk;
  if (end >= a.count) return;
  const std::int32_t token = a.tokens[end - 1];
  const bool goes_on = a.tokens[end] == token;
  const bool began_before = begin > 0 && a.tokens[begin - 1] == token;
  const std::int64_t row = row_of(token, a);
  if (!goes_on || began_before || row < 0) return;
  int followers = 0;  // chunks that begin with the token
  for (int found = kLanes; found == kLanes; followers += found) {
    const std::int64_t at = (std::int64_t{chunk} + 1 + followers + threadIdx.x) * a.chunk;
    found = __syncthreads_count(at < a.count && a.tokens[at] == token ? 1 : 0);
  }
  const int first = (static_cast<int>(blockIdx.y) * kLanes + static_cast<int>(threadIdx.x)) * 4;
  if (first >= a.columns) return;
  float sums[4];
  unpack<float>(load_of_row<float, kVector>(a.partial + (std::int64_t{chunk} * 2 + 1) * a.columns, first, a.columns),
                sums);
  const float* follower = a.partial + (std::int64_t{chunk} + 1) * 2 * a.columns;
#pragma unroll 8
  for (int i = 0; i < followers; ++i) {
    float v[4];
    unpack<float>(load_of_row<float, kVector>(follower + std::int64_t{i} * 2 * a.columns, first, a.columns), v);
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] += v[j];
  }
  add_to<G, kVector>(static_cast<G*>(a.d_table) + row * a.columns, first, a.columns, sums);
}

// A block owns a position and a tile of columns; it adds the samples in ascending order.
template <class T, class G, bool kVector>
__global__ void __launch_bounds__(kLanes)
    add_positions(const std::int32_t* verdict, const T* dy, G* d_positions, std::int64_t rows,
                  std::int64_t rows_per_sample, int columns, SequencePart part) {
  constexpr int kWidth = kPack<T>;
  const int first = (static_cast<int>(blockIdx.y) * kLanes + static_cast<int>(threadIdx.x)) * kWidth;
  if (first >= columns || *verdict != 0) return;
  float sums[kWidth] = {};
  for (std::int64_t row = blockIdx.x; row < rows; row += rows_per_sample * kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = row + u * rows_per_sample;
      raw[u] = load_of_row<T, kVector>(dy + at * columns, first, at < rows ? columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      float v[kWidth];
      unpack<T>(raw[u], v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[j] += v[j];
    }
  }
  const std::int64_t position = part.first + blockIdx.x + (blockIdx.x >= rows_per_sample / 2 ? part.gap : 0);
  add_to<G, kVector>(d_positions + position * columns, first, columns, sums);
}

int bits_of(std::int64_t vocabulary) {
  int bits = 1;
  while ((std::int64_t{1} << bits) < vocabulary) ++bits;
  return bits;
}

std::int64_t vocabulary_of(std::int64_t vocabulary, const Tensor& table) {
  return vocabulary == 0 ? table.size(0) : vocabulary;
}

// Positions from 0 to the last one of a batch.
template <class Op>
std::int64_t span_of(const Op& op) {
  const std::int64_t rows = std::min(op.tokens.numel(), op.rows_per_sample);
  return rows == 0 ? 0 : op.part.position(rows - 1, op.rows_per_sample) + 1;
}

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Sorts the tokens with their row numbers into the workspace, behind the verdict; the partial sums follow.
GradientArguments sort_tokens(CudaStream& stream, const EmbeddingBackward& op, const std::int32_t* verdict) {
  const std::int64_t count = op.tokens.numel();
  const int bits = bits_of(vocabulary_of(op.vocabulary, op.d_table));
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
  number_rows<<<blocks_for(count, kThreads), kThreads, 0, stream.handle()>>>(numbers, number);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  sort(temporary, temporary_bytes, numbers, tokens, rows);

  // Longer chunks where the partial sums would be large.
  std::int64_t chunk = kMinSortedChunk;
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
  const std::int64_t rows = op.tokens.numel(), columns = op.d_table.size(1);
  const unsigned tiles = blocks_for(columns, kLanes * kPack<T>);
  const auto chunks = static_cast<unsigned>(ceil_divide(rows, a.chunk));
  add_chunks<T, G, kVector><<<dim3(chunks, tiles), kLanes, 0, stream.handle()>>>(a);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  add_runs<G, kVector><<<dim3(chunks, blocks_for(columns, kLanes * 4)), kLanes, 0, stream.handle()>>>(a);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  if (!op.d_positions) return;
  const auto positions = static_cast<unsigned>(std::min(rows, op.rows_per_sample));
  add_positions<T, G, kVector><<<dim3(positions, tiles), kLanes, 0, stream.handle()>>>(
      a.verdict, op.dy.as<const T>(), op.d_positions.as<G>(), rows, op.rows_per_sample, a.columns, op.part);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const EmbeddingForward& op) {
  const std::int64_t rows = op.tokens.numel();
  require(rows < kMaxIndex && op.table.size(1) < kMaxIndex / 2, "EmbeddingForward: more than 2^31 rows or columns");
  const std::int32_t* verdict = launch_index_check(stream,
                                                   {.index = op.tokens.as<const std::int32_t>(),
                                                    .count = rows,
                                                    .limit = vocabulary_of(op.vocabulary, op.table),
                                                    .raise = raise_bad_token,
                                                    .positions = op.positions ? op.positions.size(0) : -1,
                                                    .span = span_of(op),
                                                    .start = op.start,
                                                    .raise_positions = raise_bad_positions},
                                                   op.workspace);
  const bool vector = rows_aligned(op.table) && rows_aligned(op.positions) && rows_aligned(op.y);
  visit_kernel(op.table.dtype, vector, [&](auto type, auto is_vector) {
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
    look_up<T, is_vector()><<<blocks_for(rows, kThreads / 32), kThreads, 0, stream.handle()>>>(a);
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void run(CudaStream& stream, const EmbeddingBackward& op) {
  const std::int64_t rows = op.tokens.numel(), columns = op.d_table.size(1);
  require(rows < kMaxIndex && columns < kMaxIndex / 2, "EmbeddingBackward: more than 2^31 rows or columns");
  const std::int32_t* verdict = launch_index_check(stream,
                                                   {.index = op.tokens.as<const std::int32_t>(),
                                                    .count = rows,
                                                    .limit = vocabulary_of(op.vocabulary, op.d_table),
                                                    .raise = raise_bad_token,
                                                    .positions = op.d_positions ? op.d_positions.size(0) : -1,
                                                    .span = span_of(op),
                                                    .raise_positions = raise_bad_positions},
                                                   op.workspace);
  if (rows == 0 || columns == 0) return;
  const GradientArguments a = sort_tokens(stream, op, verdict);
  const bool vector = rows_aligned(op.dy) && rows_aligned(op.d_table) && rows_aligned(op.d_positions);
  visit_kernel(op.dy.dtype, vector, [&](auto type, auto is_vector) {
    if (op.d_table.dtype == DType::kFp32) {
      launch_gradients<decltype(type), float, is_vector()>(stream, op, a);
    } else {
      launch_gradients<decltype(type), decltype(type), is_vector()>(stream, op, a);
    }
  });
}

}  // namespace megalith
