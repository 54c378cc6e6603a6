#include "core/data/packing.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"

namespace megalith {

namespace {

// Rows left in each pack, as a tree of maxima. A new pack is the first that is still empty.
class RowsLeft {
 public:
  RowsLeft(std::size_t packs, std::int32_t rows) : leaves_(std::bit_ceil(packs)), most_(2 * leaves_, rows) {}

  // Takes `rows` from the first pack that has them, and returns the pack.
  std::size_t take(std::int32_t rows) {
    require(most_[1] >= rows, "pack_documents: too few packs");
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (most_[2 * node] >= rows ? 0 : 1);
    const std::size_t pack = node - leaves_;
    most_[node] -= rows;
    for (node /= 2; node > 0; node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return pack;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int32_t> most_;  // node i has the children 2 i and 2 i + 1; leaves from leaves_ on
};

// Document in the order of packing: by falling rows, then by index.
constexpr std::uint64_t order_key(std::int64_t rows, std::size_t index) {
  return static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max() - rows) << 32 | index;
}
constexpr std::int32_t rows_of(std::uint64_t key) {
  return std::numeric_limits<std::int32_t>::max() - static_cast<std::int32_t>(key >> 32);
}
constexpr std::int32_t index_of(std::uint64_t key) { return static_cast<std::int32_t>(key & 0xffffffffu); }

// Keys of the documents to pack, in order. Counts long documents in `packing`.
std::vector<std::uint64_t> order_documents(std::span<const std::int32_t> lengths, const PackingOptions& options,
                                           Packing& packing) {
  std::vector<std::uint64_t> keys;
  keys.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = lengths[i];
    require(length >= 1, "pack_documents: an empty document");
    packing.longest = std::max(packing.longest, length);
    packing.num_long += length > options.seq_length ? 1 : 0;
    if (length > options.seq_length && options.long_documents == LongDocuments::kDrop) continue;
    keys.push_back(order_key(std::min(padded_rows(length, options.pad_multiple), options.seq_length), i));
  }
  if (packing.num_long > 0 && options.long_documents == LongDocuments::kError) {
    refuse_usage(options.subject,
                 {.expected = fmt::format("at least {}, the tokens of the longest conversation", packing.longest),
                  .got = fmt::format("{}, which {} of {} exceed{}", options.seq_length, packing.num_long,
                                     counted(lengths.size(), "conversation"), packing.num_long == 1 ? "s" : ""),
                  .remedy = "raise it, or use --sft-long truncate or --sft-long drop"});
  }
  std::ranges::sort(keys);
  return keys;
}

double square(std::int64_t length) { return static_cast<double>(length) * static_cast<double>(length); }

// Returns 0 .. count - 1 by falling value(i), equal ones in order.
template <class Value>
std::vector<std::size_t> falling_order(std::size_t count, const Value& value) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return value(a) > value(b); });
  return order;
}

// Microbatch of one rank. The sum is a double, which holds the squares of many long packs without overflow.
struct Cell {
  std::vector<std::int64_t> packs;
  double sum = 0.0;
};

// Distributes the packs, by falling squares, each to the cell with the least sum that is not full.
std::vector<Cell> fill_cells(std::span<const std::int64_t> squares, const StepShape& shape) {
  std::vector<Cell> cells(static_cast<std::size_t>(shape.ranks * shape.microbatches));
  using Entry = std::pair<double, std::size_t>;  // sum and cell; the least is on top
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  for (std::size_t c = 0; c < cells.size(); ++c) open.emplace(0.0, c);
  for (const std::size_t pack : falling_order(squares.size(), [&](std::size_t p) { return squares[p]; })) {
    const std::size_t c = open.top().second;
    open.pop();
    Cell& cell = cells[c];
    cell.packs.push_back(static_cast<std::int64_t>(pack));
    cell.sum += static_cast<double>(squares[pack]);
    if (std::cmp_less(cell.packs.size(), shape.packs_per_microbatch)) open.emplace(cell.sum, c);
  }
  return cells;
}

}  // namespace

Packing pack_documents(std::span<const std::int32_t> lengths, const PackingOptions& options) {
  const std::int64_t rows = options.seq_length;
  require(rows >= 1 && std::in_range<std::int32_t>(rows) && options.pad_multiple >= 1 &&
              rows % options.pad_multiple == 0 && std::in_range<std::int32_t>(lengths.size()),
          "pack_documents: bad arguments");
  Packing packing;
  const std::vector<std::uint64_t> keys = order_documents(lengths, options, packing);
  std::int64_t total = 0;
  for (const std::uint64_t key : keys) total += rows_of(key);
  // Two neighboring packs of a first fit hold more than S rows together.
  const std::size_t most_packs = std::min(keys.size(), static_cast<std::size_t>(2 * (total / rows) + 1));
  std::vector<std::int32_t> pack_of(keys.size());
  packing.begin.assign(1, 0);
  if (keys.empty()) return packing;

  RowsLeft left(most_packs, static_cast<std::int32_t>(rows));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t pack = left.take(rows_of(keys[i]));
    pack_of[i] = static_cast<std::int32_t>(pack);
    if (pack + 1 == packing.begin.size()) packing.begin.push_back(0);
    ++packing.begin[pack + 1];
  }
  std::partial_sum(packing.begin.begin(), packing.begin.end(), packing.begin.begin());
  std::vector<std::int64_t> next(packing.begin.begin(), packing.begin.end() - 1);
  packing.documents.resize(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::int64_t place = next[static_cast<std::size_t>(pack_of[i])]++;
    packing.documents[static_cast<std::size_t>(place)] = index_of(keys[i]);
  }
  return packing;
}

PackingReport report_packing(const Packing& packing, std::span<const std::int32_t> lengths, std::int64_t seq_length) {
  PackingReport report{.packs = packing.num_packs(), .documents = static_cast<std::int64_t>(packing.documents.size())};
  if (report.packs == 0) return report;
  double largest = 0.0, sum = 0.0;
  for (std::int64_t p = 0; p < report.packs; ++p) {
    double squares = 0.0;
    for (const std::int32_t document : packing.pack(p)) {
      const std::int64_t length = std::min<std::int64_t>(lengths[static_cast<std::size_t>(document)], seq_length);
      report.tokens += length;
      squares += square(length);
    }
    report.max_documents = std::max(report.max_documents, static_cast<std::int64_t>(packing.pack(p).size()));
    largest = std::max(largest, squares);
    sum += squares;
  }
  const auto packs = static_cast<double>(report.packs);
  report.fill = static_cast<double>(report.tokens) / (packs * static_cast<double>(seq_length));
  report.mean_documents = static_cast<double>(report.documents) / packs;
  report.imbalance = largest * packs / sum;
  return report;
}

std::vector<std::int64_t> balance(std::span<const std::int64_t> squares, const StepShape& shape) {
  require(shape.ranks >= 1 && shape.microbatches >= 1 && shape.packs_per_microbatch >= 1 &&
              std::cmp_equal(squares.size(), shape.ranks * shape.microbatches * shape.packs_per_microbatch),
          "balance: one value per pack of the step");
  const std::vector<Cell> cells = fill_cells(squares, shape);
  const auto ranks = static_cast<std::size_t>(shape.ranks);
  const auto batch = static_cast<std::size_t>(shape.packs_per_microbatch);
  const std::vector<std::size_t> order = falling_order(cells.size(), [&](std::size_t c) { return cells[c].sum; });
  std::vector<double> of_rank(ranks, 0.0);
  std::vector<std::int64_t> result(squares.size());
  for (std::size_t first = 0; first < cells.size(); first += ranks) {
    // Ranks by rising sums meet microbatches by falling sums.
    const std::vector<std::size_t> rank = falling_order(ranks, [&](std::size_t r) { return -of_rank[r]; });
    for (std::size_t i = 0; i < ranks; ++i) {
      const Cell& cell = cells[order[first + i]];
      of_rank[rank[i]] += cell.sum;
      std::ranges::copy(cell.packs, result.begin() + static_cast<std::ptrdiff_t>((first + rank[i]) * batch));
    }
  }
  return result;
}

// The microbatches in the order of their first packs.
std::vector<std::int64_t> number_microbatches(std::span<const std::int64_t> order, std::int64_t packs_per_microbatch) {
  require(packs_per_microbatch >= 1 && std::ssize(order) % packs_per_microbatch == 0,
          "number_microbatches: not a result of balance()");
  std::vector<std::int64_t> number_of_pack(order.size());
  for (std::size_t p = 0; p < order.size(); p += static_cast<std::size_t>(packs_per_microbatch))
    number_of_pack[static_cast<std::size_t>(order[p])] = 1;
  std::exclusive_scan(number_of_pack.begin(), number_of_pack.end(), number_of_pack.begin(), std::int64_t{0});
  std::vector<std::int64_t> numbers;
  for (std::size_t p = 0; p < order.size(); p += static_cast<std::size_t>(packs_per_microbatch))
    numbers.push_back(number_of_pack[static_cast<std::size_t>(order[p])]);
  return numbers;
}

}  // namespace megalith
