// Positions of the rows of an ExchangeRows, for all communicators.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/host_device.h"
#include "parallel/comm/collective.h"

namespace megalith {

// Rows from one rank to another: `rows` rows, from row `from` of the source (of its index, if present) to row `to` of
// the target's out.
struct RowPiece {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t rows = 0;
};

// Also a kernel argument. Invalid counts give fewer rows, never rows outside of the tensors.
struct RowCounts {
  const std::int32_t* sends;  // [ranks, ranks + 1]
  int ranks;
  bool back;
  std::int64_t pair_room;
  std::int64_t listed;   // M: rows that a rank sends, and that return
  std::int64_t arrived;  // C

  MEGALITH_HOST_DEVICE std::int64_t begin(int source, int target) const {
    const std::int64_t value = sends[static_cast<std::int64_t>(source) * (ranks + 1) + target];
    return value < 0 ? 0 : value;
  }
  MEGALITH_HOST_DEVICE std::int64_t count(int source, int target) const {
    const std::int64_t rows = begin(source, target + 1) - begin(source, target);
    return rows < 0 ? 0 : rows < pair_room ? rows : pair_room;
  }
  // Piece in the direction of the exchange; with `back`, the target is the rank that the rows came from.
  MEGALITH_HOST_DEVICE RowPiece piece(int source, int target) const {
    const int home = back ? target : source, away = back ? source : target;
    std::int64_t arrival = 0;
    for (int rank = 0; rank < home; ++rank) arrival += count(rank, away);
    const std::int64_t first = begin(home, away);
    std::int64_t rows = count(home, away);
    if (rows > listed - first) rows = listed - first;
    if (rows > arrived - arrival) rows = arrived - arrival;
    if (rows < 0) rows = 0;
    return back ? RowPiece{arrival, first, rows} : RowPiece{first, arrival, rows};
  }
};

RowCounts counts_of(const ExchangeRows& op);

// Address of sent row `row` of a tensor, on the CPU.
inline const std::byte* sent_row(const ExchangeRows& op, const ExchangeRows::Rows& tensor, std::int64_t row) {
  const std::int64_t at = op.index ? op.index.as<const std::int32_t>()[row] : row;
  return tensor.in.as<const std::byte>() + at * tensor.in.size(1) * static_cast<std::int64_t>(size_of(tensor.in.dtype));
}

// PaddedExchangeRows::room: one part per other rank, ascending, for sent rows, then the same for received rows. A part
// holds pair_room rows of each tensor, in tensor order.
struct ExchangeParts {
  std::int64_t offsets[ExchangeRows::kMostTensors + 1] = {};  // of the tensors, in a part; multiples of 16
  std::int64_t bytes = 0;                                     // per part

  explicit ExchangeParts(const ExchangeRows& op);
  // Parts by rank, except this one.
  std::byte* sent(const PaddedExchangeRows& op, int rank) const;
  std::byte* received(const PaddedExchangeRows& op, int rank) const;
};

// Bytes that this rank sends to others, on the CPU.
std::int64_t sent_bytes(const ExchangeRows& op);
// Copies rows from `source`'s in to this rank's out, both on the CPU.
void copy_rows(const ExchangeRows& source, int rank, const ExchangeRows& target);

}  // namespace megalith
