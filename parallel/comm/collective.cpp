#include "parallel/comm/collective.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/tensor/check.h"
#include "parallel/comm/communicator.h"

namespace megalith {

namespace {

template <class Op>
std::string subject(const Op& op, std::string_view argument) {
  return fmt::format("{} on group {}: {}", Op::kName, op.group.name(), argument);
}

void check_reducible(const Tensor& tensor, const std::string& name) {
  check_dtype(tensor, {DType::kFp32, DType::kBf16, DType::kFp64, DType::kInt32, DType::kInt64}, name);
}

void check_buffer(const Tensor& tensor, const std::string& name) {
  if (tensor.data == nullptr && tensor.numel() != 0) fail({.subject = name, .expected = "a tensor", .got = "none"});
  check_contiguous(tensor, name);
}

template <class Op>
void check_ends(const Op& op) {
  check_buffer(op.in, subject(op, "in"));
  check_buffer(op.out, subject(op, "out"));
  check_dtype(op.out, {op.in.dtype}, subject(op, "out"));
}

// Checks that `part` is a rank's part of `whole`: its own place there, or disjoint memory.
template <class Op>
void check_part(const Op& op, const Tensor& part, const Tensor& whole, std::string_view argument,
                std::string_view of_whole) {
  const std::string name = subject(op, argument);
  if (whole.numel() != op.group.size() * part.numel()) {
    fail({.subject = name,
          .expected = fmt::format("1/{} of the {} elements of {}", op.group.size(), whole.numel(), of_whole),
          .got = fmt::format("{}", part.numel())});
  }
  if (part.numel() == 0) return;
  const auto* own = whole.as<std::byte>() + static_cast<std::size_t>(op.group.rank()) * part.bytes();
  if (part.data != own) check_no_overlap(part, name, whole, "the whole");
}

template <class Op>
void check_rank(const Op& op, int rank, std::string_view argument) {
  if (rank >= 0 && rank < op.group.size()) return;
  fail({.subject = subject(op, argument),
        .expected = fmt::format("0 to {}", op.group.size() - 1),
        .got = fmt::format("{}", rank)});
}

template <class Op>
void check_peer(const Op& op) {
  check_buffer(op.buffer, subject(op, "buffer"));
  check_rank(op, op.peer, "peer");
  if (op.peer != op.group.rank()) return;
  fail({.subject = subject(op, "peer"), .expected = "another rank", .got = fmt::format("{}", op.peer)});
}

void check(const AllReduce& op) {
  check_buffer(op.buffer, subject(op, "buffer"));
  check_reducible(op.buffer, subject(op, "buffer"));
}

void check(const ReduceScatter& op) {
  check_ends(op);
  check_reducible(op.in, subject(op, "in"));
  check_part(op, op.out, op.in, "out", "in");
}

template <class Op>
void check_shares_memory(const Op& op, std::string_view argument) {
  if (op.group.size() > 1 && op.group.memory_sharing() != nullptr) return;
  fail(
      {.subject = subject(op, argument), .expected = "memory that the ranks share", .got = "a group that shares none"});
}

void check(const SharedReduceScatter& op) {
  check_shares_memory(op, "in");
  check_buffer(op.in, subject(op, "in"));
  check_buffer(op.out, subject(op, "out"));
  check_dtype(op.in, {DType::kFp32, DType::kBf16}, subject(op, "in"));
  check_dtype(op.out, {op.in.dtype, DType::kFp32}, subject(op, "out"));
  check_part(op, op.out, op.in, "out", "in");
  const std::string copies = subject(op, "copies");
  check_buffer(op.copies, copies);
  check_dtype(op.copies, {op.in.dtype}, copies);
  const std::int64_t unit = 8 * (op.group.size() - 1);
  if (op.copies.numel() == 0 || op.copies.numel() % unit != 0) {
    fail({.subject = copies,
          .expected = fmt::format("a multiple of {} elements", unit),
          .got = fmt::format("{}", op.copies.numel())});
  }
  check_no_overlap(op.copies, "copies", op.in, copies);
  check_no_overlap(op.copies, "copies", op.out, copies);
}

void check(const AllGather& op) {
  check_ends(op);
  check_part(op, op.in, op.out, "in", "out");
}

void check(const SharedAllGather& op) {
  check_shares_memory(op, "in");
  check_ends(op);
  check_no_overlap(op.in, "in", op.out, subject(op, "out"));
  check_part(op, op.in, op.out, "in", "out");
}

void check(const Shift& op) {
  check_ends(op);
  if (op.step <= 0 || op.step >= op.group.size()) {
    fail({.subject = subject(op, "step"),
          .expected = fmt::format("1 to {}", op.group.size() - 1),
          .got = fmt::format("{}", op.step)});
  }
  if (op.in.numel() != op.out.numel()) {
    fail({.subject = subject(op, "out"),
          .expected = fmt::format("the {} elements of in", op.in.numel()),
          .got = fmt::format("{}", op.out.numel())});
  }
  check_no_overlap(op.in, "in", op.out, subject(op, "out"));
}

void check(const Broadcast& op) {
  check_buffer(op.buffer, subject(op, "buffer"));
  check_rank(op, op.root, "root");
}

void check(const Send& op) {
  check_peer(op);
  if (op.place) check_shares_memory(op, "place");
}

void check(const Receive& op) {
  check_peer(op);
  if (op.placed) check_shares_memory(op, "placed");
}

std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

// Represents equal parts as one row per rank.
void count_parts(AllToAll& op) {
  if (!op.in_rows.empty() || !op.out_rows.empty()) return;
  const int ranks = op.group.size();
  if (op.in.numel() % ranks != 0 || op.in.numel() != op.out.numel()) {
    fail({.subject = subject(op, "in and out"),
          .expected = fmt::format("equal sizes that are a multiple of {}", ranks),
          .got = fmt::format("{} and {} elements", op.in.numel(), op.out.numel())});
  }
  const Shape parts{ranks, op.in.numel() / ranks};
  op.in = op.in.view(parts);
  op.out = op.out.view(parts);
  op.in_rows.assign(static_cast<std::size_t>(ranks), 1);
  op.out_rows = op.in_rows;
}

Tensor used_rows(const AllToAll& op, const Tensor& tensor, const std::vector<std::int64_t>& rows,
                 std::string_view argument) {
  const bool fits = tensor.rank() > 0 && rows.size() == static_cast<std::size_t>(op.group.size()) &&
                    std::all_of(rows.begin(), rows.end(), [](std::int64_t r) { return r >= 0; }) &&
                    sum_of(rows) <= tensor.size(0);
  if (!fits) {
    fail({.subject = subject(op, argument),
          .expected = fmt::format("{} counts of rows that fit into {}", op.group.size(), to_string(tensor.shape)),
          .got = fmt::format("[{}]", fmt::join(rows, ", "))});
  }
  return tensor.slice(0, 0, sum_of(rows));
}

AllToAll checked_op(AllToAll op) {
  check_buffer(op.in, subject(op, "in"));
  check_buffer(op.out, subject(op, "out"));
  count_parts(op);
  const Tensor in = used_rows(op, op.in, op.in_rows, "in");
  const Tensor out = used_rows(op, op.out, op.out_rows, "out");
  const std::string name = subject(op, "out");
  check_dtype(op.out, {op.in.dtype}, name);
  Shape like_in = op.in.shape;
  like_in[0] = op.out.size(0);
  check_shape(op.out, like_in, name);
  check_no_overlap(in, "in", out, name);
  const auto own = static_cast<std::size_t>(op.group.rank());
  require(op.in_rows[own] == op.out_rows[own],
          "all_to_all: what a rank sends to itself and receives from itself differ");
  op.in = in;
  op.out = out;
  return op;
}

void refuse_numbers(const ExchangeRows& op, std::string_view argument, const std::string& expected, std::int64_t got) {
  fail({.subject = subject(op, argument), .expected = expected, .got = fmt::format("{}", got)});
}

void check_rows(const ExchangeRows& op, const ExchangeRows::Rows& rows) {
  check_buffer(rows.in, subject(op, "in"));
  check_rank(rows.in, 2, 2, subject(op, "in"));
  check_buffer(rows.out, subject(op, "out"));
  check_dtype(rows.out, {rows.in.dtype}, subject(op, "out"));
  check_shape(rows.in, {op.rows.front().in.size(0), rows.in.size(1)}, subject(op, "in"));
  check_shape(rows.out, {op.rows.front().out.size(0), rows.in.size(1)}, subject(op, "out"));
  for (const ExchangeRows::Rows& other : op.rows) {
    check_no_overlap(rows.out, "out", other.in, subject(op, "in"));
    if (&other != &rows) check_no_overlap(rows.out, "out", other.out, subject(op, "another out"));
  }
  for (const Tensor& read : {op.index, op.sends})
    check_no_overlap(rows.out, "out", read, subject(op, "index or sends"));
}

void check(const ExchangeRows& op) {
  const std::int64_t tensors = static_cast<std::int64_t>(op.rows.size()), ranks = op.group.size();
  if (op.rows.empty() || op.rows.size() > ExchangeRows::kMostTensors)
    refuse_numbers(op, "rows", "1 to 3 tensors", tensors);
  for (const ExchangeRows::Rows& rows : op.rows) check_rows(op, rows);
  if (op.index) {
    check_buffer(op.index, subject(op, "index"));
    check_rank(op.index, 1, 1, subject(op, "index"));
    check_dtype(op.index, {DType::kInt32}, subject(op, "index"));
    if (op.back) fail({.subject = subject(op, "index"), .expected = "none on the way back", .got = "one"});
  }
  check_buffer(op.sends, subject(op, "sends"));
  check_dtype(op.sends, {DType::kInt32}, subject(op, "sends"));
  check_shape(op.sends, {ranks, ranks + 1}, subject(op, "sends"));
  if (op.pair_room < 0) refuse_numbers(op, "pair_room", "0 or more", op.pair_room);
  if (op.expected_rows < 0) refuse_numbers(op, "expected_rows", "0 or more", op.expected_rows);
}

void check(const PaddedExchangeRows& op) {
  check(static_cast<const ExchangeRows&>(op));
  check_buffer(op.room, subject(op, "room"));
  check_dtype(op.room, {DType::kUint8}, subject(op, "room"));
  check_shape(op.room, {exchange_room_bytes(op)}, subject(op, "room"));
  for (const ExchangeRows::Rows& rows : op.rows) {
    check_no_overlap(op.room, "room", rows.in, subject(op, "in"));
    check_no_overlap(op.room, "room", rows.out, subject(op, "out"));
  }
}

template <class Op>
Op checked_op(Op op) {
  check(op);
  const auto flatten = [](Tensor& tensor) { tensor = tensor.view({tensor.numel()}); };
  if constexpr (requires { op.buffer; }) {
    flatten(op.buffer);
  } else if constexpr (requires { op.in; }) {
    flatten(op.in);
    flatten(op.out);
  }
  return op;
}

template <class Op>
const Tensor& input_of(const Op& op) {
  if constexpr (requires { op.buffer; }) {
    return op.buffer;
  } else if constexpr (requires { op.rows; }) {
    return op.rows.front().in;
  } else {
    return op.in;
  }
}

template <class Op>
bool reads_buffer(const Op& op) {
  if constexpr (std::is_same_v<Op, Broadcast>) return op.root == op.group.rank();
  return !std::is_same_v<Op, Receive>;
}

template <class Op>
bool writes_buffer(const Op& op) {
  return std::is_same_v<Op, AllReduce> || !reads_buffer(op);
}

// Value that is equal on all ranks.
std::int64_t expected_elements(const ExchangeRows& op) {
  std::int64_t width = 0;
  for (const ExchangeRows::Rows& rows : op.rows) width += rows.in.size(1);
  return op.expected_rows * width;
}

// Only the device knows the number of rows written in `out`: no dtype, as for bounded tensors.
void add_access(const ExchangeRows& op, const Tensor& room, Access& access) {
  for (const ExchangeRows::Rows& rows : op.rows) {
    access.reads(rows.in);
    if (rows.out.numel() > 0) access.add(rows.out.data, rows.out.bytes(), true);
  }
  access.reads(op.index);
  access.reads(op.sends);
  access.writes(room);
  access.set_moved_bytes(static_cast<std::size_t>(2 * op.expected_rows * row_bytes(op)));
}

}  // namespace

Collective checked(Collective collective) {
  return std::visit([](auto&& op) { return Collective(checked_op(std::forward<decltype(op)>(op))); },
                    std::move(collective));
}

Access access_of(const Collective& collective) {
  return std::visit(
      [](const auto& op) {
        Access access(op.kName);
        if constexpr (requires { op.buffer; }) {
          if (reads_buffer(op)) access.reads(op.buffer);
          if (writes_buffer(op)) access.writes(op.buffer);
        } else if constexpr (requires { op.room; }) {
          add_access(op, op.room, access);
        } else if constexpr (requires { op.rows; }) {
          add_access(op, {}, access);
        } else {
          access.reads(op.in);
          access.writes(op.out);
          if constexpr (requires { op.accumulate; }) {
            if (op.accumulate) access.reads(op.out);
            access.writes(op.copies);
          }
        }
        return access;
      },
      collective);
}

CollectiveCall call_of(const Collective& collective) {
  return std::visit(
      [](const auto& op) {
        const Tensor& input = input_of(op);
        CollectiveCall call{.kind = op.kName, .dtype = static_cast<int>(input.dtype), .count = input.numel()};
        call.label = op.label;
        if constexpr (requires { op.rows; }) call.count = expected_elements(op);
        if constexpr (requires { op.root; }) call.argument = op.root;
        if constexpr (requires { op.step; }) call.argument = op.step;
        if constexpr (requires { op.peer; }) {
          call.argument = op.peer;
          call.point_to_point = true;
        }
        return call;
      },
      collective);
}

bool is_idle(const Collective& collective) {
  return std::visit(
      [](const auto& op) {
        if (op.group.size() > 1) return false;
        if constexpr (requires { op.buffer; }) {
          return true;
        } else if constexpr (requires { op.rows; }) {
          return false;
        } else {
          return op.in.data == op.out.data;
        }
      },
      collective);
}

const ExchangeRows* exchange_rows_in(const Collective& collective) {
  if (const auto* const padded = std::get_if<PaddedExchangeRows>(&collective)) return padded;
  return std::get_if<ExchangeRows>(&collective);
}

std::int64_t row_bytes(const ExchangeRows& op) {
  std::int64_t bytes = 0;
  for (const ExchangeRows::Rows& rows : op.rows) {
    bytes += rows.in.size(1) * static_cast<std::int64_t>(size_of(rows.in.dtype));
  }
  return bytes;
}

AllToAll all_to_all_of(const Shift& shift) {
  const int ranks = shift.group.size(), rank = shift.group.rank();
  AllToAll op{.group = shift.group, .in = shift.in, .out = shift.out};
  op.in_rows.assign(static_cast<std::size_t>(ranks), 0);
  op.out_rows = op.in_rows;
  op.in_rows[static_cast<std::size_t>((rank + shift.step) % ranks)] = shift.in.numel();
  op.out_rows[static_cast<std::size_t>((rank - shift.step + ranks) % ranks)] = shift.out.numel();
  return op;
}

Tensor rows_of_rank(const Tensor& whole, const std::vector<std::int64_t>& rows, int rank) {
  return whole.slice(0, std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0}),
                     rows[static_cast<std::size_t>(rank)]);
}

}  // namespace megalith
