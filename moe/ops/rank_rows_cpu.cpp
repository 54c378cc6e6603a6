// CPU kernels: plain loops over tokens.
#include <algorithm>
#include <array>
#include <limits>

#include "core/ops/dispatch.h"
#include "core/ops/loops.h"
#include "moe/ops/rank_rows.h"
#include "moe/ops/route_tables_cpu.h"
#include "moe/ops/router.h"

namespace megalith {

namespace {

constexpr std::int64_t kAnyRow = std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;

// Number of rows that rank `from` sends to rank `to`.
std::int64_t rows_sent(const Tensor& sends, std::int64_t from, std::int64_t to) {
  const std::int64_t at = from * sends.size(1) + to;
  const auto* row = sends.as<const std::int32_t>();
  check_route(at, row[at], 0, kAnyRow);
  check_route(at + 1, row[at + 1], row[at], kAnyRow);
  return row[at + 1] - row[at];
}

// Value after rounding to T.
template <class T>
F32x8 rounded(F32x8 x) {
  alignas(32) T stored[8];
  simd::store(stored, x);
  return simd::load(stored);
}

// Choices of a token with a row, sorted by group, then by order.
struct GroupedChoices {
  struct Choice {
    std::int64_t group;
    std::int32_t row;
  };
  std::array<Choice, kMaxChoices> sorted;
  std::int64_t count = 0;

  GroupedChoices(const UnpermuteGroups& op, const std::int32_t* position, std::int64_t token) {
    const std::int64_t choices = op.position.size(1), end = op.first_expert + op.groups * op.experts_per_group;
    const auto* const choice = op.choice.as<const std::int32_t>();
    for (std::int64_t slot = token * choices; slot < (token + 1) * choices; ++slot) {
      if (position[slot] < 0) continue;
      check_route(slot, choice[slot], op.first_expert, end);
      const Choice one{(choice[slot] - op.first_expert) / op.experts_per_group, position[slot]};
      auto at = sorted.begin() + count++;
      for (; at > sorted.begin() && at[-1].group > one.group; --at) *at = at[-1];
      *at = one;
    }
  }
};

}  // namespace

void compute(const ChosenRanks& op) {
  const std::int64_t tokens = op.choice.size(0), choices = op.choice.size(1), ranks = op.ranks.size(1);
  const std::int64_t limit = ranks / op.copies * op.experts_per_rank;
  const auto* choice = op.all ? nullptr : checked(op.choice, op.choice.numel(), -1, limit);
  auto* chosen = op.ranks.as<std::int32_t>();
  for (std::int64_t token = 0; token < tokens; ++token, chosen += ranks) {
    for (std::int64_t p = 0; p < ranks; ++p) chosen[p] = op.all ? static_cast<std::int32_t>(p) : -1;
    for (std::int64_t k = 0; k < choices && !op.all; ++k) {
      const std::int64_t expert = choice[token * choices + k], first = expert / op.experts_per_rank * op.copies;
      for (std::int64_t p = first; p < first + op.copies && expert >= 0; ++p) chosen[p] = static_cast<std::int32_t>(p);
    }
  }
}

void compute(const ArrivedRows& op) {
  auto* offsets = op.offsets.as<std::int32_t>();
  std::int64_t wanted = 0;
  const auto store = [&](std::int64_t s) { offsets[s] = static_cast<std::int32_t>(std::min(wanted, op.room)); };
  store(0);
  for (std::int64_t s = 0; s < op.sends.size(0); ++s) {
    wanted += rows_sent(op.sends, s, op.rank);
    store(s + 1);
  }
  *op.wanted.as<std::int32_t>() = static_cast<std::int32_t>(wanted);
}

void compute(const UnpermuteGroups& op) {
  const std::int64_t columns = op.x.size(1), width = op.y.size(1), tokens = bounded_rows(op.position);
  const bool separate = width != columns;
  const std::int32_t* position = checked_positions(op.position, op.x);
  visit_float(op.x.dtype, [&]<class T>(T) {
    const Row x = op.x.as<const T>();
    for (std::int64_t token = 0; token < tokens; ++token) {
      const GroupedChoices of(op, position, token);
      const Row y = op.y.as<T>() + token * width;
      for_each_element(columns, [&](auto i) {
        F32x8 total = broadcast(0.0f);
        for (std::int64_t group = 0, k = 0; group < op.groups; ++group) {
          F32x8 sum = broadcast(0.0f);
          for (; k < of.count && of.sorted[static_cast<std::size_t>(k)].group == group; ++k)
            sum += (x + of.sorted[static_cast<std::size_t>(k)].row * columns)[i];
          if (separate) {
            (y + group * columns).set(i, sum);
          } else {
            total += rounded<T>(sum);
          }
        }
        if (!separate) y.set(i, total);
      });
    }
  });
}

void compute(const SumReturnedWeights& op) {
  const std::int64_t tokens = op.choice.size(0), choices = op.choice.size(1), ranks = op.position.size(1);
  const std::int64_t limit = ranks / op.copies * op.experts_per_rank, rows = bounded_rows(op.x);
  const std::int32_t* choice = checked(op.choice, op.choice.numel(), -1, limit);
  const auto* position = op.position.as<const std::int32_t>();
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t k = 0; k < choices; ++k) {
      const std::int64_t slot = token * choices + k, expert = choice[slot];
      const std::int64_t first = token * ranks + expert / op.experts_per_rank * op.copies;
      float sum = 0;
      for (std::int64_t at = first; at < first + op.copies && expert >= 0; ++at) {
        check_route(at, position[at], -1, rows);
        if (position[at] >= 0) sum += op.x.as<const float>()[position[at] * choices + k];
      }
      op.d_weight.as<float>()[slot] = sum;
    }
  }
}

void compute(const RecordRoom& op) {
  auto* needed = op.needed.as<std::int32_t>();
  needed[0] = std::max(needed[0], *op.arrived.as<const std::int32_t>());
  needed[1] = std::max(needed[1], *op.rows.as<const std::int32_t>());
}

void compute(const CountSentRows& op) {
  auto* counts = op.counts.as<std::int32_t>();
  for (std::int64_t p = 0; p < op.counts.numel(); ++p)
    counts[p] += static_cast<std::int32_t>(rows_sent(op.sends, op.rank, p));
}

}  // namespace megalith
