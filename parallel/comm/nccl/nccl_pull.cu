#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/device/cuda/bulk_copy.cuh"
#include "core/device/cuda/check.h"
#include "core/ops/cuda_launch.cuh"
#include "parallel/comm/nccl/nccl_pull.cuh"
#include "parallel/comm/nccl/nccl_pull.h"

namespace megalith {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kInFlight = 8;  // loads per thread: a warp reads 4 KiB at once, a block 64 KiB
constexpr int kMostRanks = 512;
constexpr int kHalf = 16;  // half of a warp's lanes
constexpr int kRingWarps = 12;
constexpr int kRingBytes = 17 * 1024;  // per warp
constexpr int kSharedBytes = kRingWarps * kRingBytes;
constexpr int kPartBytes = 4096;  // maximum
constexpr int kMostSlots = 32;
constexpr int kStoring = 2;  // slots per warp with stores in flight
constexpr int kLaneWarps = 4;
constexpr int kLaneBytes = 32;  // maximum bytes of a row that one lane moves
static_assert(kMaxPullRanks <= kThreads && kMaxPullRanks <= kRingWarps * 32);  // threads that synchronize with peers
static_assert(1 + 31 / kHalf < kMostTensors);

template <class ByteUnit>
__device__ void move_units(const std::byte* from, std::byte* to, int units, int lane) {
  ByteUnit values[kInFlight];
  int first = lane;
  for (; first + 32 * (kInFlight - 1) < units; first += 32 * kInFlight) {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) values[j] = load<ByteUnit>(from, first + 32 * j);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) reinterpret_cast<ByteUnit*>(to)[first + 32 * j] = values[j];
  }
#pragma unroll
  for (int j = 0; j + 1 < kInFlight; ++j) {
    if (first + 32 * j < units) values[j] = load<ByteUnit>(from, first + 32 * j);
  }
#pragma unroll
  for (int j = 0; j + 1 < kInFlight; ++j) {
    if (first + 32 * j < units) reinterpret_cast<ByteUnit*>(to)[first + 32 * j] = values[j];
  }
}

__device__ void move_row(const RowTensor& x, const std::byte* from, std::byte* to, int lane) {
  switch (x.unit) {
    case 16: return move_units<uint4>(from, to, x.units, lane);
    case 4: return move_units<unsigned>(from, to, x.units, lane);
    case 2: return move_units<unsigned short>(from, to, x.units, lane);
    default: return move_units<unsigned char>(from, to, x.units, lane);
  }
}

// Moves one row of all tensors. Each half-warp has a narrow row in flight while all lanes move the first tensor's row.
template <Way kWay>
__device__ void move_tensors(const RowMoves& moves, const Ends& ends, std::int64_t from_row, std::int64_t to_row,
                             int lane) {
  const auto from = [&](const RowTensor& x) {
    return (kWay == Way::kUnpack ? x.parts : x.in) + ends.from + from_row * x.row_bytes;
  };
  const auto to = [&](const RowTensor& x) {
    return (ends.to_parts ? x.parts + ends.to : x.out) + to_row * x.row_bytes;
  };
  const RowTensor& own = moves.of[1 + lane / kHalf];
  const bool has_narrow = own.narrow && lane % kHalf < own.units;
  uint4 value{};
  if (has_narrow && own.unit == 16) value = load<uint4>(from(own), lane % kHalf);
  if (has_narrow && own.unit == 4) value.x = load<unsigned>(from(own), lane % kHalf);
  move_row(moves.of[0], from(moves.of[0]), to(moves.of[0]), lane);
  if (has_narrow && own.unit == 16) reinterpret_cast<uint4*>(to(own))[lane % kHalf] = value;
  if (has_narrow && own.unit == 4) reinterpret_cast<unsigned*>(to(own))[lane % kHalf] = value.x;
  for (int t = 1; t < moves.tensors; ++t) {
    if (!moves.of[t].narrow) move_row(moves.of[t], from(moves.of[t]), to(moves.of[t]), lane);
  }
}

// Moves any rows through registers, in one pass. A warp has all loads of a row in flight at once.
template <Way kWay>
__global__ void __launch_bounds__(kThreads, 1) exchange_rows_kernel(const __grid_constant__ RowMoves moves) {
  __shared__ RowPiece pieces[kMostRanks];
  find_pieces<kWay>(moves, pieces);
  const Worker worker = worker_of(static_cast<int>(threadIdx.x) / 32, kWarps);
  for_rows<kWay>(moves, pieces, worker, [&](const Ends& ends, std::int64_t from, std::int64_t to) {
    move_tensors<kWay>(moves, ends, from, to, worker.lane);
  });
  if constexpr (kWay == Way::kPull) take_rows(moves.meeting, moves.rank, moves.counts.ranks);
}

// Ring of a warp's slots in shared memory. A slot holds a part of a row of the first tensor; the last part is followed
// by the rows of other tensors. Separate warps move the remaining tensors, with one row per lane.
struct Ring {
  int tensors;
  int slots;
  int slot_bytes;
  int parts;  // per row
  unsigned part_bytes;
};

template <class ByteUnit>
__device__ void move_short_row(const std::byte* from, std::byte* to, int units) {
  constexpr int kMost = kLaneBytes / sizeof(ByteUnit);
  ByteUnit values[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j < units) values[j] = load<ByteUnit>(from, j);
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j < units) reinterpret_cast<ByteUnit*>(to)[j] = values[j];
  }
}

__device__ void pull_by_lanes(const RowMoves& moves, int first_tensor, const RowPiece* pieces, const Worker& worker) {
  for_batches<Way::kPull>(moves, pieces, worker, [&](const Ends& ends, std::int64_t from_row, std::int64_t to_row) {
    for (int t = first_tensor; t < moves.tensors && from_row >= 0; ++t) {
      const RowTensor& x = moves.of[t];
      const std::byte* from = x.in + ends.from + from_row * x.row_bytes;
      std::byte* to = x.out + to_row * x.row_bytes;
      if (x.unit == 16) {
        move_short_row<uint4>(from, to, x.units);
      } else {
        move_short_row<unsigned>(from, to, x.units);
      }
    }
  });
}

// Moves rows in units of 16 bytes through shared memory, by Hopper's bulk copies. One lane of a warp starts them. All
// slots have loads in flight, except kStoring that are stored or free. This keeps 1.5 times as many bytes in flight as
// registers do, and no warp waits for its own stores.
__device__ void pull_by_ring(const RowMoves& moves, const Ring& ring, const RowPiece* pieces, int warp) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ std::uint64_t barriers[kRingWarps][kMostSlots];
  const Worker worker = worker_of(warp, kRingWarps);
  const int lane = worker.lane;
  const bool starts = lane == 0;
  const unsigned slots_at = cuda::shared_address(memory) + static_cast<unsigned>(warp * ring.slots * ring.slot_bytes);
  const unsigned barriers_at = cuda::shared_address(barriers[warp]);
  const auto slot_at = [&](int slot) { return slots_at + static_cast<unsigned>(slot * ring.slot_bytes); };
  const auto barrier_at = [&](int slot) { return barriers_at + static_cast<unsigned>(slot) * 8; };
  if (starts) {
    for (int slot = 0; slot < ring.slots; ++slot) cuda::mbarrier_init(barrier_at(slot), 1);
    cuda::fence_mbarrier_init();
  }

  // Calls f(tensor, byte in its row, bytes, byte in the slot) for each piece of a part.
  const auto for_part = [&](int part, auto f) {
    const unsigned begin = static_cast<unsigned>(part) * ring.part_bytes;
    const unsigned left = static_cast<unsigned>(moves.of[0].row_bytes) - begin;
    f(moves.of[0], begin, min(left, ring.part_bytes), 0u);
    if (part + 1 < ring.parts) return;
    unsigned at = ring.part_bytes;
    for (int t = 1; t < ring.tensors; ++t) {
      f(moves.of[t], 0u, static_cast<unsigned>(moves.of[t].row_bytes), at);
      at += static_cast<unsigned>(moves.of[t].row_bytes);
    }
  };
  int loading = 0, next = 0, oldest = 0;  // loads in flight; slots of the next and the oldest load
  unsigned parity = 0;                    // of the oldest slot
  std::int64_t to_row = 0;                // of slot `lane`
  int to_part = 0;
  const auto store_oldest = [&] {
    const std::int64_t to = __shfl_sync(~0u, to_row, oldest);
    const int part = __shfl_sync(~0u, to_part, oldest);
    if (starts) {
      cuda::mbarrier_wait(barrier_at(oldest), parity);
      for_part(part, [&](const RowTensor& x, unsigned begin, unsigned bytes, unsigned at) {
        cuda::bulk_store(x.out + to * x.row_bytes + begin, slot_at(oldest) + at, bytes);
      });
      cuda::bulk_commit_group();
    }
    if (++oldest == ring.slots) {
      oldest = 0;
      parity ^= 1;
    }
    --loading;
  };
  for_rows<Way::kPull>(moves, pieces, worker, [&](const Ends& ends, std::int64_t from, std::int64_t to) {
    for (int part = 0; part < ring.parts; ++part) {
      if (loading == ring.slots - kStoring) store_oldest();
      if (lane == next) {
        to_row = to;
        to_part = part;
      }
      if (starts) {
        cuda::bulk_wait_group_read<kStoring>();  // older stores have left their slots
        unsigned sum = 0;
        for_part(part, [&](const RowTensor&, unsigned, unsigned bytes, unsigned) { sum += bytes; });
        cuda::mbarrier_arrive_expect_tx(barrier_at(next), sum);
        for_part(part, [&](const RowTensor& x, unsigned begin, unsigned bytes, unsigned at) {
          cuda::bulk_load(slot_at(next) + at, x.in + ends.from + from * x.row_bytes + begin, bytes, barrier_at(next));
        });
      }
      if (++next == ring.slots) next = 0;
      ++loading;
    }
  });
  while (loading > 0) store_oldest();
  if (starts) cuda::bulk_wait_group<0>();
#endif
}

__global__ void __launch_bounds__((kRingWarps + kLaneWarps) * 32, 1)
    pull_rows_kernel(const __grid_constant__ RowMoves moves, const Ring ring) {
  __shared__ RowPiece pieces[kMaxPullRanks];
  find_pieces<Way::kPull>(moves, pieces);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kRingWarps) {
    pull_by_ring(moves, ring, pieces, warp);
  } else {
    pull_by_lanes(moves, ring.tensors, pieces, worker_of(warp - kRingWarps, kLaneWarps));
  }
  take_rows(moves.meeting, moves.rank, moves.counts.ranks);
}

bool fits(int unit, std::int64_t number) { return number % unit == 0; }
bool fits(int unit, const void* address) { return reinterpret_cast<std::uintptr_t>(address) % unit == 0; }

// Moves without bases and parts.
RowMoves moves_of(const ExchangeRows& op, const Tensor& room = {}) {
  const Tensor& first = op.rows.front().in;
  const ExchangeParts parts(op);
  RowMoves moves{.counts = counts_of(op),
                 .index = op.index ? op.index.as<const std::int32_t>() : nullptr,
                 .in_rows = first.size(0),
                 .rank = op.group.rank(),
                 .tensors = 0,
                 .part_bytes = parts.bytes};
  require(moves.counts.ranks <= kMostRanks, "exchange_rows of more than 512 GPUs");
  for (std::size_t t = 0; t < op.rows.size(); ++t) {
    const ExchangeRows::Rows& rows = op.rows[t];
    const std::int64_t bytes = rows.in.size(1) * static_cast<std::int64_t>(size_of(rows.in.dtype));
    if (bytes == 0) continue;
    moves.of[moves.tensors++] = {.in = rows.in.as<const std::byte>(),
                                 .out = rows.out.as<std::byte>(),
                                 .parts = room ? room.as<std::byte>() + parts.offsets[t] : nullptr,
                                 .row_bytes = bytes};
  }
  std::sort(moves.of, moves.of + moves.tensors,
            [](const RowTensor& a, const RowTensor& b) { return a.row_bytes > b.row_bytes; });
  return moves;
}

// Finds the unit in which each tensor's rows can be moved.
template <Way kWay>
void find_units(RowMoves& moves) {
  for (int t = 0; t < moves.tensors; ++t) {
    RowTensor& x = moves.of[t];
    const auto whole = [&](int unit) {
      bool fit = fits(unit, x.row_bytes) && fits(unit, x.in) && fits(unit, x.out) && fits(unit, x.parts);
      for (int r = 0; kWay == Way::kPull && r < moves.counts.ranks; ++r) fit = fit && fits(unit, moves.shift[r]);
      return fit;
    };
    x.unit = whole(16) ? 16 : whole(4) ? 4 : whole(2) ? 2 : 1;
    require(x.row_bytes / x.unit < std::int64_t{1} << 30, "exchange_rows: rows of 2^30 elements or more");
    x.units = static_cast<int>(x.row_bytes / x.unit);
    x.narrow = x.unit >= 4 && x.units <= kHalf;
  }
}

unsigned blocks_for(const RowMoves& moves, int warps, unsigned most) {
  const std::int64_t rows = std::max<std::int64_t>(1, moves.counts.ranks * moves.counts.pair_room);
  return static_cast<unsigned>(std::min<std::int64_t>((rows + warps - 1) / warps, most));
}

template <Way kWay>
void launch(CudaStream& stream, const RowMoves& moves, unsigned max_blocks) {
  if (moves.tensors == 0) return;
  exchange_rows_kernel<kWay><<<blocks_for(moves, kWarps, max_blocks), kThreads, 0, stream.handle()>>>(moves);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

// Returns no slots if the rows are unsuitable.
Ring ring_of(const RowMoves& moves) {
  const RowTensor *const first = moves.of, *const end = first + moves.tensors;
  const auto is_short = [](const RowTensor& x) { return x.row_bytes <= kLaneBytes; };
  const RowTensor* const shorts = std::find_if(first, end, is_short);
  const auto fits_ring = [](const RowTensor& x) { return x.unit == 16; };
  const auto fits_lanes = [](const RowTensor& x) { return x.unit >= 4; };
  if (first->row_bytes < 256) return {};
  if (!std::all_of(first, shorts, fits_ring) || !std::all_of(shorts, end, fits_lanes)) return {};
  std::int64_t rest_bytes = 0;  // row bytes after the first tensor
  for (const RowTensor* x = first + 1; x < shorts; ++x) rest_bytes += x->row_bytes;
  const std::int64_t parts = (first->row_bytes + kPartBytes - 1) / kPartBytes;
  const std::int64_t part_bytes = (first->units + parts - 1) / parts * 16, slot_bytes = part_bytes + rest_bytes;
  const std::int64_t slots = std::min<std::int64_t>(kRingBytes / slot_bytes, kMostSlots);
  if (slots <= kStoring + 1) return {};
  return {.tensors = static_cast<int>(shorts - first),
          .slots = static_cast<int>(slots),
          .slot_bytes = static_cast<int>(slot_bytes),
          .parts = static_cast<int>(parts),
          .part_bytes = static_cast<unsigned>(part_bytes)};
}

}  // namespace

bool load_pull_kernels() {
  cudaFuncAttributes kernel{};
  MEGALITH_CUDA_CHECK(cudaFuncGetAttributes(&kernel, offer_rows_kernel));
  MEGALITH_CUDA_CHECK(cudaFuncGetAttributes(&kernel, exchange_rows_kernel<Way::kPull>));
  MEGALITH_CUDA_CHECK(cudaFuncGetAttributes(&kernel, pull_rows_kernel));
  int device = 0, most = 0;
  MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
  MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  // Compiled for Hopper or newer, and this GPU has the shared memory.
  return kernel.ptxVersion >= 90 && kSharedBytes + static_cast<int>(kernel.sharedSizeBytes) <= most;
}

void pull_rows(CudaStream& stream, const ExchangeRows& op, std::span<const std::byte* const> bases,
               const PullMeeting& meeting, bool in_bulk) {
  RowMoves moves = moves_of(op);
  moves.meeting = meeting;
  require(static_cast<int>(bases.size()) == moves.counts.ranks, "pull_rows: a base of each rank");
  require(moves.counts.ranks <= kMaxPullRanks, "exchange_rows among more than 64 GPUs that share memory");
  for (std::size_t r = 0; r < bases.size(); ++r) {
    moves.shift[r] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(bases[r]) -
                                  reinterpret_cast<std::intptr_t>(bases[static_cast<std::size_t>(moves.rank)]));
  }
  if (moves.tensors == 0) return;
  if (meeting.state != nullptr) {
    offer_rows_kernel<<<1, kMaxPullRanks, 0, stream.handle()>>>(meeting, moves.rank, moves.counts.ranks);
    MEGALITH_CUDA_CHECK(cudaGetLastError());
  }
  find_units<Way::kPull>(moves);
  const Ring ring = in_bulk ? ring_of(moves) : Ring{};
  if (ring.slots == 0) return launch<Way::kPull>(stream, moves, kPullBlocks);
  cuda::allow_shared_memory<pull_rows_kernel>(kSharedBytes);
  const int warps = kRingWarps + (ring.tensors < moves.tensors ? kLaneWarps : 0);
  pull_rows_kernel<<<blocks_for(moves, kRingWarps, kPullBlocks), warps * 32, kSharedBytes, stream.handle()>>>(moves,
                                                                                                              ring);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

void pack_rows(CudaStream& stream, const PaddedExchangeRows& op) {
  RowMoves moves = moves_of(op, op.room);
  find_units<Way::kPack>(moves);
  launch<Way::kPack>(stream, moves, static_cast<unsigned>(stream.multiprocessors()));
}

void unpack_rows(CudaStream& stream, const PaddedExchangeRows& op) {
  RowMoves moves = moves_of(op, op.room);
  for (int t = 0; t < moves.tensors; ++t) moves.of[t].parts += (moves.counts.ranks - 1) * moves.part_bytes;
  find_units<Way::kUnpack>(moves);
  launch<Way::kUnpack>(stream, moves, static_cast<unsigned>(stream.multiprocessors()));
}

}  // namespace megalith
