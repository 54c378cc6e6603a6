// Collectives as ops: structs of named arguments that launch() of communicator.h enqueues on a stream, asynchronously
// to the host. All ranks of a group enqueue the same sequence. Buffers are contiguous; numel 0 is legal. P: ranks of
// the group. `label` describes the payload for hang reports: "gradients of bucket 2".
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/instruments/access.h"
#include "core/tensor/tensor.h"
#include "parallel/watch/flight_recorder.h"

namespace megalith {

class Communicator;

enum class ReduceOp : std::uint8_t { kSum, kMax };

struct AllReduce {
  static constexpr const char* kName = "all_reduce";
  Communicator& group;
  Tensor buffer;                 // [n] fp32 | bf16 | fp64 | int32 | int64, read and written
  ReduceOp op = ReduceOp::kSum;  // kMax with a NaN input: unspecified
  std::string label = {};
};

// Sums each rank's n elements over the ranks.
struct ReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Communicator& group;
  Tensor in;   // [P * n], dtypes as AllReduce
  Tensor out;  // [n], written; may be in's own part
  std::string label = {};
};

struct AllGather {
  static constexpr const char* kName = "all_gather";
  Communicator& group;
  Tensor in;   // [n]; may be out's own part
  Tensor out;  // [P * n], written, in rank order
  std::string label = {};
};

// Sends part r to rank r: equal parts, or rows (dim 0) split by one count per rank. Rows beyond the sum of the counts
// are neither read nor written.
struct AllToAll {
  static constexpr const char* kName = "all_to_all";
  Communicator& group;
  Tensor in;
  Tensor out;                              // written
  std::vector<std::int64_t> in_rows = {};  // row counts; both empty: equal parts
  std::vector<std::int64_t> out_rows = {};
  std::string label = {};
};

// Exchanges rows whose counts only the device knows; `sends` defines them when the call runs. Rank s's rows sends[s][p]
// .. sends[s][p + 1] - 1 arrive at rank p after those of ranks below s. With `back`, they return from there to the same
// rows of rank s. Rows beyond the end of `out` are dropped, and their sources are not written on return. T, C, M,
// `pair_room`, `expected_rows`, and the rows' widths and dtypes are equal on all ranks. On GPUs, ranks that share
// memory (memory_sharing.h) hold `in` and `index` in it, at equal offsets, and read each other's rows. Other GPU ranks
// use PaddedExchangeRows.
struct ExchangeRows {
  static constexpr const char* kName = "exchange_rows";
  static constexpr std::size_t kMostTensors = 3;
  struct Rows {
    Tensor in;   // [T, W]; with `back`: [C, W], where they arrived
    Tensor out;  // [C, W], written where rows arrive; with `back`: [M, W]
  };
  Communicator& group;
  std::vector<Rows> rows;          // at most 3, each with its own W and dtype
  Tensor index = {};               // optional [M] int32: sent row j is row index[j] of `in`; not with `back`
  Tensor sends;                    // [P, P + 1] int32, equal on all ranks, ascending from 0 in each row
  std::int64_t pair_room = 0;      // maximum rows from one rank to another; more are not sent
  std::int64_t expected_rows = 0;  // to other ranks, for forecasts
  bool back = false;
  std::string label = {};
};
// ExchangeRows on GPUs through NCCL, in equal parts of pair_room rows.
struct PaddedExchangeRows : ExchangeRows {
  Tensor room;  // [exchange_room_bytes(op)] uint8, written on GPUs
};
// Bytes of `room`; 0 for a group of one rank.
std::int64_t exchange_room_bytes(const ExchangeRows& op);
// Total bytes of one row of each tensor.
std::int64_t row_bytes(const ExchangeRows& op);

// Position of a shift in a series of shifts by 1, 2, ... P - 1 on one stream. No input of a series is written before
// its last shift has run. Ranks that read each other's memory then synchronize less often.
enum class ShiftSeries : std::uint8_t {
  kAlone,
  kOneInput,    // all shifts send the same input
  kManyInputs,  // each shift has its own input
};

// Sends `in` to the rank `step` above, and receives `out` from the rank `step` below, modulo P.
struct Shift {
  static constexpr const char* kName = "shift";
  Communicator& group;
  Tensor in;     // [n]
  Tensor out;    // [n], written
  int step = 1;  // 0 < step < P
  ShiftSeries series = ShiftSeries::kAlone;
  std::string label = {};
};

struct Broadcast {
  static constexpr const char* kName = "broadcast";
  Communicator& group;
  Tensor buffer;  // read on the root, written elsewhere
  int root = 0;
  std::string label = {};
};

// Occupies the stream until the peer's Receive has run; small messages may leave earlier.
struct Send {
  static constexpr const char* kName = "send";
  Communicator& group;
  Tensor buffer;
  int peer = 0;
  std::string label = {};
  // Byte offset of the receiver's buffer in the memory that it shares (memory_sharing.h). If set, the sender writes the
  // message there, and the Receive is `placed`.
  std::optional<std::size_t> place = {};
};

struct Receive {
  static constexpr const char* kName = "receive";
  Communicator& group;
  Tensor buffer;  // written
  int peer = 0;
  std::string label = {};
  bool placed = false;  // the Send has a place
};

// Collectives of groups whose ranks read each other's memory (memory_sharing.h). MemorySharing::share_memory() must
// have returned true for memory that holds `in`, at equal offsets on each rank. Other groups reject them.

// AllGather by copy engines; `out` is disjoint from `in`.
struct SharedAllGather {
  static constexpr const char* kName = "all_gather";
  Communicator& group;
  Tensor in;   // [n], shared
  Tensor out;  // [P * n], written, in rank order
  std::string label = {};
};

// ReduceScatter in rank order and fp32: each rank copies the others' parts and sums them.
struct SharedReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Communicator& group;
  Tensor in;                // [P * n] fp32 | bf16, shared
  Tensor out;               // [n] of in's dtype, or fp32; written; may be in's own part
  Tensor copies;            // [(P - 1) m] of in's dtype, m a multiple of 8: written, m elements of each part per round
  bool accumulate = false;  // adds to out
  std::string label = {};
};

template <class Op>
concept SharedCollective = std::same_as<Op, SharedAllGather> || std::same_as<Op, SharedReduceScatter>;

using Collective = std::variant<AllReduce, ReduceScatter, AllGather, AllToAll, ExchangeRows, PaddedExchangeRows, Shift,
                                Broadcast, Send, Receive, SharedReduceScatter, SharedAllGather>;
// Names by the variant's index.
inline constexpr std::array<const char*, std::variant_size_v<Collective>> kCollectiveNames = {
    AllReduce::kName,           ReduceScatter::kName,  AllGather::kName, AllToAll::kName, ExchangeRows::kName,
    PaddedExchangeRows::kName,  Shift::kName,          Broadcast::kName, Send::kName,     Receive::kName,
    SharedReduceScatter::kName, SharedAllGather::kName};

// Normalizes the collective for communicators: tensors of one dim, except for ExchangeRows and AllToAll, which gets its
// counts and only the used rows. Invalid arguments are an Error.
Collective checked(Collective collective);
// Reads and writes of this rank, for a checked collective.
Access access_of(const Collective& collective);
// Flight recorder's entry for a checked collective.
CollectiveCall call_of(const Collective& collective);
// True if nothing is exchanged or copied: one rank, in place.
bool is_idle(const Collective& collective);
// Executes a collective of one rank with copy(in, out); not for ExchangeRows.
template <class Copy>
void copy_alone(const Collective& collective, Copy copy) {
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { op.in; }) {
          if (op.in.data != op.out.data && op.in.bytes() > 0) copy(op.in, op.out);
        }
      },
      collective);
}
// ExchangeRows or PaddedExchangeRows in the collective, or null.
const ExchangeRows* exchange_rows_in(const Collective& collective);
// Shift as the messages that it consists of.
AllToAll all_to_all_of(const Shift& shift);

// Rows of an AllToAll that rank `rank` sends or receives.
Tensor rows_of_rank(const Tensor& whole, const std::vector<std::int64_t>& rows, int rank);

}  // namespace megalith
