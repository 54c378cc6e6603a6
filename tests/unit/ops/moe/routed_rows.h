// Rows sorted by expert, for the tests of ops on them. Values beyond the last expert's rows are NaN, and so are the
// rows at their indices.
#pragma once

#include <cmath>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/route_rows.h"
#include "tests/reference/grouped_gemm.h"
#include "tests/support/replays.h"

namespace megalith::test {

struct ExpertRanges {
  std::vector<int> offsets;
  std::int64_t capacity;

  std::int64_t live() const { return offsets.back(); }
  std::int64_t experts() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

class RoutedTest : public OpTest {
 protected:
  static constexpr std::int64_t kTokens = 10;  // even: with its lowest bit changed an index is still one

  Tensor offsets_of(const ExpertRanges& routing) {
    return input({routing.experts() + 1}, DType::kInt32, Values(routing.offsets.begin(), routing.offsets.end()));
  }
  // `values` for the live rows, then NaN.
  static Values padded(Values values, const ExpertRanges& routing, std::int64_t width) {
    values.resize(static_cast<std::size_t>(routing.live() * width));
    values.resize(static_cast<std::size_t>(routing.capacity * width), std::nan(""));
    return values;
  }
  Tensor routed_input(const ExpertRanges& routing, std::int64_t width, double deviation = 1) {
    return input({routing.capacity, width}, dtype(), padded(normal(routing.live() * width, deviation), routing, width));
  }
  Tensor row_weights(const ExpertRanges& routing) {
    return input({routing.capacity}, DType::kFp32, padded(normal(routing.live()), routing, 1));
  }
  // Tokens, of which the last two are NaN, and the tokens of the rows.
  Tensor token_input(std::int64_t width, double deviation = 1) {
    Values given = normal(kTokens * width, deviation);
    for (std::size_t i = static_cast<std::size_t>((kTokens - 2) * width); i < given.size(); ++i)
      given[i] = std::nan("");
    return input({kTokens, width}, dtype(), given);
  }
  Tensor token_index(const ExpertRanges& routing) {
    Values given;
    for (std::int64_t r = 0; r < routing.capacity; ++r) {
      given.push_back(r < routing.live() ? static_cast<double>(random()() % (kTokens - 2)) : kTokens - 1);
    }
    return input({routing.capacity}, DType::kInt32, given);
  }
  struct Operand {
    Tensor x, index;
  };
  Operand operand(const ExpertRanges& routing, std::int64_t width, bool gathered) {
    if (!gathered) return {routed_input(routing, width), {}};
    return {token_input(width), token_index(routing)};
  }

  // Rows that an index selects, one after the other.
  Tensor rows_in_memory(const Tensor& x, const Tensor& index, const Tensor& offsets) {
    const Tensor rows = output({index.size(0), x.size(1)});
    launch(stream(), PermuteRows{.x = x, .index = index, .offsets = offsets, .y = rows});
    return rows;
  }

  // Columns [first, first + columns) of the rows, in the references' format.
  reference::RoutedRows rows_of(const Operand& of, std::int64_t first, std::int64_t columns) {
    reference::RoutedRows rows{.x = values(of.x),
                               .width = static_cast<std::size_t>(of.x.size(1)),
                               .first = static_cast<std::size_t>(first),
                               .columns = static_cast<std::size_t>(columns)};
    if (of.index) {
      for (const double index : values(of.index)) rows.index.push_back(static_cast<int>(index));
    }
    return rows;
  }
  static reference::RoutedRows magnitudes(reference::RoutedRows rows) {
    for (double& value : rows.x) value = std::abs(value);
    return rows;
  }
  static Values magnitudes(Values x) {
    for (double& value : x) value = std::abs(value);
    return x;
  }

  static Tensor live(const Tensor& x, const ExpertRanges& routing) { return x.slice(0, 0, routing.live()); }
  void expect_rest_untouched(const Tensor& x, const ExpertRanges& routing) {
    expect_untouched(x.slice(0, routing.live(), routing.capacity - routing.live()));
  }
  // Tensors whose reads have no effect if no row is live.
  static Idles no_rows(const ExpertRanges& routing, std::initializer_list<Tensor> reads) {
    Idles idle;
    if (routing.live() > 0) return idle;
    for (const Tensor& read : reads) {
      if (read && read.numel() > 0) idle.emplace_back(read, "no rows");
    }
    return idle;
  }
  // Without live rows, the kernel decides whether wrong offsets have an influence.
  template <class Op>
  void run_any_rows(const Op& op, const ExpertRanges& routing, const Idles& idle = {}) {
    if (routing.live() > 0 || routing.capacity == 0) return run(op, idle);
    launch(stream(), ready(op));
    stream().synchronize();
  }
  // A graph that was captured with one routing gives another's results after a change of the offsets.
  template <class Op>
  void expect_replay_follows_offsets(Op op, const std::vector<Tensor>& results) {
    const ExpertRanges first{{0, 40, 41, 90}, kReplayCapacity}, second{{0, 0, 77, 99}, kReplayCapacity};
    const Tensor offsets = output({4}, DType::kInt32);
    const auto results_of = [&](const ExpertRanges& routing, const std::function<void()>& act) {
      launch(stream(), Copy{.src = offsets_of(routing), .dst = offsets});
      for (const Tensor& result : results) launch(stream(), Fill{.x = result, .value = 0});
      act();
      std::vector<Values> all;
      for (const Tensor& result : results) all.push_back(values(result));
      return all;
    };
    op.offsets = offsets;
    op = ready(op);
    expect_replay_follows(
        stream(), first, second, [&] { launch(stream(), op); }, results_of);
  }
  static constexpr std::int64_t kReplayCapacity = 100;
  // Rows that are all numbers, for any routing of that capacity.
  static ExpertRanges all_rows() { return {{0, 0, 0, static_cast<int>(kReplayCapacity)}, kReplayCapacity}; }

  static std::string name_of(const ExpertRanges& routing) {
    std::string name = std::to_string(routing.capacity) + " rows, offsets";
    for (const int offset : routing.offsets) name += " " + std::to_string(offset);
    return name;
  }
};

// No rows; no expert with rows; one row; an empty expert between others, and capacity left at the end; many small ones.
inline const ExpertRanges kSmallRoutings[] = {
    {{0, 0}, 0}, {{0, 0, 0, 0}, 5}, {{0, 1}, 1}, {{0, 3, 3, 8}, 11}, {{0, 1, 1, 3, 8, 9, 9, 20, 21}, 22}};
// Past a tile; one expert with all rows; eight with an empty one.
inline const ExpertRanges kLargeRoutings[] = {{{0, 0, 150, 150}, 160}, {{0, 7, 7, 40, 41, 106, 235, 300, 301}, 305}};
// 256 experts of 0 to 4 rows.
inline ExpertRanges many_experts() {
  ExpertRanges routing{{0}, 0};
  for (int e = 0; e < 256; ++e) routing.offsets.push_back(routing.offsets.back() + e * 7 % 5);
  routing.capacity = routing.live() + 3;
  return routing;
}

}  // namespace megalith::test
