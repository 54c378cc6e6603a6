// Collectives as ops: structs of named arguments that launch() of communicator.h enqueues on a stream, asynchronous to
// the host. All ranks of a group enqueue the same sequence. Buffers are contiguous; numel 0 is legal. P: ranks of the
// group. `label` says what the call carries, for reports of hangs: "gradients of bucket 2".
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
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
  ReduceOp op = ReduceOp::kSum;  // kMax where one is NaN: unspecified
  std::string label = {};
};

// The sum over ranks of each rank's n elements.
struct ReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Communicator& group;
  Tensor in;   // [P * n] of a dtype of AllReduce
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

// Part r goes to rank r: equal parts, or rows (dim 0) split by the counts, one per rank. Rows beyond their sum are
// neither read nor written.
struct AllToAll {
  static constexpr const char* kName = "all_to_all";
  Communicator& group;
  Tensor in;
  Tensor out;                              // written
  std::vector<std::int64_t> in_rows = {};  // both empty: equal parts
  std::vector<std::int64_t> out_rows = {};
  std::string label = {};
};

// Rows whose numbers the device alone knows: each rank sends each other as many as `sends` says when the call runs.
// Rank s's rows sends[s][p] .. sends[s][p + 1] - 1 arrive at p behind those of ranks below s; `back`, they go home from
// there to rows sends[s][p] .. of rank s. Rows that arrive at out's end or beyond are dropped; what has dropped rows is
// then not written on the way back. T, C, M, `pair_room`, `expected_rows` and the rows' widths and dtypes are alike on
// all ranks. On GPUs: ranks that share memory (memory_sharing.h) hold `in` and `index` in it, at equal places, and read
// each other's rows; others need `room`, through which NCCL takes equal parts of pair_room rows.
struct ExchangeRows {
  static constexpr const char* kName = "exchange_rows";
  static constexpr std::size_t kMostTensors = 3;
  struct Rows {
    Tensor in;   // [T, W]; back: [C, W], where they arrived
    Tensor out;  // [C, W], written where rows arrive; back: [M, W]
  };
  Communicator& group;
  std::vector<Rows> rows;          // at most 3, each its own W and dtype
  Tensor index = {};               // optional [M] int32: row j of what is sent is in's row index[j]; not with `back`
  Tensor sends;                    // [P, P + 1] int32, the same on all ranks, ascending from 0 in each row
  std::int64_t pair_room = 0;      // rows from one rank to another at most; further ones are not sent
  std::int64_t expected_rows = 0;  // sent to other ranks, for forecasts
  bool back = false;
  Tensor room = {};  // [exchange_room_bytes(op)] uint8, written; of NCCL where ranks share no memory
  std::string label = {};
};
// 0 for a group of one rank.
std::int64_t exchange_room_bytes(const ExchangeRows& op);
// Of a row of each of the tensors, in all.
std::int64_t row_bytes(const ExchangeRows& op);

// Whether a shift is one of a series: those by 1, 2, ... P - 1, on one stream, whose inputs nobody writes before the
// last has run. Ranks that read each other's memory then meet less often.
enum class ShiftSeries : std::uint8_t {
  kAlone,
  kOneInput,    // all of them send the same
  kManyInputs,  // each its own
};

// `in` goes to the rank `step` above this one, `out` comes from the rank `step` below, around the end.
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

// Occupies the stream until the peer's Receive was enqueued too and has run (small messages may leave earlier).
struct Send {
  static constexpr const char* kName = "send";
  Communicator& group;
  Tensor buffer;
  int peer = 0;
  std::string label = {};
};

struct Receive {
  static constexpr const char* kName = "receive";
  Communicator& group;
  Tensor buffer;  // written
  int peer = 0;
  std::string label = {};
};

// Collectives of groups whose ranks read each other's memory (memory_sharing.h): MemorySharing::share_memory() has
// returned true for memory that holds `in`, at the same place on each rank. Other groups refuse them.

// AllGather by copy engines, to an out that is elsewhere.
struct SharedAllGather {
  static constexpr const char* kName = "all_gather";
  Communicator& group;
  Tensor in;   // [n], shared
  Tensor out;  // [P * n], written, in rank order
  std::string label = {};
};

// ReduceScatter in the order of the ranks and in fp32: each rank copies the others' parts and sums them.
struct SharedReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  Communicator& group;
  Tensor in;                // [P * n] fp32 | bf16, shared
  Tensor out;               // [n] of in's dtype, or fp32; written; may be in's own part
  Tensor copies;            // [(P - 1) m] of in's dtype, m a multiple of 8: written, m elements of each part at a time
  bool accumulate = false;  // adds to out
  std::string label = {};
};

template <class Op>
concept SharedCollective = std::same_as<Op, SharedAllGather> || std::same_as<Op, SharedReduceScatter>;

using Collective = std::variant<AllReduce, ReduceScatter, AllGather, AllToAll, ExchangeRows, Shift, Broadcast, Send,
                                Receive, SharedReduceScatter, SharedAllGather>;
// By the variant's index.
inline constexpr std::array<const char*, std::variant_size_v<Collective>> kCollectiveNames = {
    AllReduce::kName,      ReduceScatter::kName, AllGather::kName, AllToAll::kName, ExchangeRows::kName,
    Shift::kName,          Broadcast::kName,     Send::kName,      Receive::kName,  SharedReduceScatter::kName,
    SharedAllGather::kName};

// The collective as communicators run it: tensors of one dim, but for AllToAll, which has its counts and the rows in
// use alone, and ExchangeRows. Throws Error for arguments that are wrong in themselves.
Collective checked(Collective collective);
// Of a checked one: what this rank reads and writes.
Access access_of(const Collective& collective);
// Likewise, for the flight recorder.
CollectiveCall call_of(const Collective& collective);
// Nothing is exchanged or copied: one rank, in place.
bool is_idle(const Collective& collective);
// A group of one rank: copy(in, out) is all there is to do, but for ExchangeRows.
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
// A shift as the messages it consists of.
AllToAll all_to_all_of(const Shift& shift);

// What rank `rank` sends or gets, of the rows of an AllToAll.
Tensor rows_of_rank(const Tensor& whole, const std::vector<std::int64_t>& rows, int rank);

}  // namespace megalith
