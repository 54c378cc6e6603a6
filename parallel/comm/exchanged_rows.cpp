#include "parallel/comm/exchanged_rows.h"

#include <cstring>

#include "parallel/comm/communicator.h"

namespace megalith {

namespace {

constexpr std::int64_t kAlignment = 16;

}  // namespace

RowCounts counts_of(const ExchangeRows& op) {
  const std::int64_t in = op.rows.front().in.size(0), out = op.rows.front().out.size(0);
  return {.sends = op.sends.as<const std::int32_t>(),
          .ranks = op.group.size(),
          .back = op.back,
          .pair_room = op.pair_room,
          .listed = op.back    ? out
                    : op.index ? op.index.numel()
                               : in,
          .arrived = op.back ? in : out};
}

ExchangeParts::ExchangeParts(const ExchangeRows& op) {
  for (std::size_t t = 0; t < op.rows.size(); ++t) {
    const Tensor& in = op.rows[t].in;
    const std::int64_t tensor = op.pair_room * in.size(1) * static_cast<std::int64_t>(size_of(in.dtype));
    offsets[t] = bytes;
    bytes += (tensor + kAlignment - 1) / kAlignment * kAlignment;
  }
}

std::byte* ExchangeParts::sent(const PaddedExchangeRows& op, int rank) const {
  return op.room.as<std::byte>() + (rank < op.group.rank() ? rank : rank - 1) * bytes;
}

std::byte* ExchangeParts::received(const PaddedExchangeRows& op, int rank) const {
  return sent(op, rank) + (op.group.size() - 1) * bytes;
}

std::int64_t exchange_room_bytes(const ExchangeRows& op) { return 2 * (op.group.size() - 1) * ExchangeParts(op).bytes; }

std::int64_t sent_bytes(const ExchangeRows& op) {
  const RowCounts counts = counts_of(op);
  std::int64_t rows = 0;
  for (int rank = 0; rank < counts.ranks; ++rank) {
    if (rank != op.group.rank()) rows += counts.piece(op.group.rank(), rank).rows;
  }
  return rows * row_bytes(op);
}

void copy_rows(const ExchangeRows& source, int rank, const ExchangeRows& target) {
  const RowPiece piece = counts_of(target).piece(rank, target.group.rank());
  for (std::size_t t = 0; t < target.rows.size(); ++t) {
    const Tensor& out = target.rows[t].out;
    const std::size_t bytes = static_cast<std::size_t>(out.size(1)) * size_of(out.dtype);
    if (bytes == 0) continue;
    std::byte* const to = out.as<std::byte>() + static_cast<std::size_t>(piece.to) * bytes;
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      std::memcpy(to + static_cast<std::size_t>(row) * bytes, sent_row(source, source.rows[t], piece.from + row),
                  bytes);
    }
  }
}

}  // namespace megalith
