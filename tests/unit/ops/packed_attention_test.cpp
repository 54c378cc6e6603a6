// Attention of packed documents and of windows: against fp64, and without influence among documents.
#include <cmath>
#include <numeric>

#include "core/ops/attention/attention.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/reference/attention.h"
#include "tests/support/op_test.h"
#include "tests/support/replays.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

using Lengths = std::vector<std::int64_t>;

struct Pack {
  Lengths queries;  // rows of each document; 0: an empty entry
  std::int64_t heads, kv_heads, dim;
  std::int64_t window = 0;
  bool causal = true;
  Lengths keys = {};           // empty: those of the queries
  bool is_one_sample = false;  // a dense op of one document

  const Lengths& key_lengths() const { return keys.empty() ? queries : keys; }
  std::int64_t rows() const { return std::accumulate(queries.begin(), queries.end(), std::int64_t{0}); }
  std::int64_t key_rows() const { return std::accumulate(key_lengths().begin(), key_lengths().end(), std::int64_t{0}); }
  std::int64_t longest() const {
    return std::max(*std::max_element(queries.begin(), queries.end()),
                    *std::max_element(key_lengths().begin(), key_lengths().end()));
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  Shape query_shape() const { return {1, rows(), heads, dim}; }
  Shape key_shape() const { return {1, key_rows(), kv_heads, dim}; }
  Shape statistics() const { return {1, heads, rows()}; }

  reference::AttentionSizes sizes() const {
    const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    reference::AttentionSizes z{.samples = 1,
                                .queries = size(rows()),
                                .keys = size(key_rows()),
                                .heads = size(heads),
                                .kv_heads = size(kv_heads),
                                .dim = size(dim),
                                .scale = static_cast<double>(scale()),
                                .causal = causal,
                                .window = size(window)};
    std::size_t query = 0, key = 0;
    for (std::size_t c = 0; c < queries.size() && !is_one_sample; ++c) {
      z.documents.push_back({query, size(queries[c]), key, size(key_lengths()[c])});
      query += size(queries[c]), key += size(key_lengths()[c]);
    }
    return z;
  }
};

// Lengths around the tiles of 6 rows, 64 keys and 128 queries, and empty entries.
const Pack kPacks[] = {{{1}, 1, 1, 8},
                       {{3, 1, 0, 9}, 2, 1, 40},
                       {{64, 0, 65, 130, 1, 63}, 4, 2, 32},
                       {{0, 17, 200, 0, 0}, 2, 2, 64},
                       {{31, 70}, 4, 1, 128},
                       {{70, 5, 80}, 2, 1, 256},
                       {{9, 5}, 2, 1, 16, 1},
                       {{130, 3, 64, 0}, 2, 1, 32, 7},
                       {{150, 90}, 4, 2, 64, 64},
                       {{300}, 2, 1, 128, 100},
                       {{9, 5}, 2, 2, 16, 100},
                       {{210}, 2, 1, 24, 70, true, {}, true},
                       {{140}, 2, 2, 64, 1, true, {}, true},
                       {{7, 65, 0, 3}, 4, 2, 32, 0, false, {130, 1, 0, 64}},
                       {{40, 20, 5, 0}, 2, 1, 64, 0, false, {3, 0, 70, 9}}};

void PrintTo(const Pack& pack, std::ostream* os) {
  for (const std::int64_t length : pack.queries) *os << length << ' ';
  *os << "of " << pack.heads << '/' << pack.kv_heads << " heads of " << pack.dim << ", window " << pack.window
      << (pack.causal ? "" : ", all keys");
}

class PackedAttentionTest : public OpTest {
 protected:
  struct Given {
    Values q, k, v, d_out;
  };
  Given given(const Pack& z) {
    return {normal(z.query_shape().numel()), normal(z.key_shape().numel()), normal(z.key_shape().numel()),
            normal(z.query_shape().numel())};
  }
  DocumentRows documents(const Lengths& lengths) {
    Values begin, length;
    double at = 0;
    for (const std::int64_t rows : lengths) {
      begin.push_back(at), length.push_back(static_cast<double>(rows));
      at += static_cast<double>(rows);
    }
    const Shape capacity{static_cast<std::int64_t>(lengths.size())};
    return {.begin = input(capacity, DType::kInt32, begin), .length = input(capacity, DType::kInt32, length)};
  }
  AttentionForward forward(const Pack& z, const Given& x) {
    AttentionForward op{.q = input(z.query_shape(), dtype(), x.q),
                        .k = input(z.key_shape(), dtype(), x.k),
                        .v = input(z.key_shape(), dtype(), x.v),
                        .out = output(z.query_shape()),
                        .lse = output(z.statistics(), DType::kFp32),
                        .scale = z.scale(),
                        .causal = z.causal,
                        .workspace = {},
                        .window = z.window,
                        .max_length = z.longest()};
    if (!z.is_one_sample) {
      op.query_documents = documents(z.queries);
      op.key_documents = documents(z.key_lengths());
    }
    return op;
  }
  // dq, dk and dv are slices of one tensor, as in a layer, if keys and queries have equally many rows.
  AttentionBackward backward(const Pack& z, const Given& x, const AttentionForward& of) {
    const auto exact = reference::attention(values(of.q), values(of.k), values(of.v), z.sizes());
    AttentionBackward op{.q = of.q,
                         .k = of.k,
                         .v = of.v,
                         .out = input(z.query_shape(), dtype(), exact.out),
                         .d_out = input(z.query_shape(), dtype(), x.d_out),
                         .lse = input(z.statistics(), DType::kFp32, exact.lse),
                         .delta = output(z.statistics(), DType::kFp32),
                         .dq = {},
                         .dk = {},
                         .dv = {},
                         .workspace = {},
                         .scale = z.scale(),
                         .causal = z.causal,
                         .window = z.window,
                         .query_documents = of.query_documents,
                         .key_documents = of.key_documents,
                         .max_length = of.max_length};
    if (z.rows() == z.key_rows()) {
      const Tensor all = output({1, z.rows(), z.heads + 2 * z.kv_heads, z.dim});
      op.dq = all.slice(2, 0, z.heads);
      op.dk = all.slice(2, z.heads, z.kv_heads);
      op.dv = all.slice(2, z.heads + z.kv_heads, z.kv_heads);
    } else {
      op.dq = output(z.query_shape()), op.dk = output(z.key_shape()), op.dv = output(z.key_shape());
    }
    return op;
  }
  bool is_cudnn() const { return device() == DeviceType::kCuda && dtype() == DType::kBf16; }
  // cuDNN multiplies P and dS as bf16, so that each term of a sum is rounded, not only the sum.
  void expect_sum(const Tensor& got, const Values& want, const Values& magnitude, std::int64_t length,
                  std::string_view what) {
    const bool rounds_terms = is_cudnn() && got.dtype == DType::kBf16;
    const Values allowed = rounds_terms ? magnitude : sum_magnitude(want, magnitude, got.dtype, length);
    expect_close(got, want, {.length = length, .magnitude = allowed, .what = what});
  }
  // Runs the op. If cuDNN does not support the head dim of packed documents, expects an error.
  template <class Op>
  bool runs(const Op& op) {
    if (is_cudnn() && op.query_documents && op.q.size(3) % 16 != 0) {
      expect_kernel_error(op, ExitCode::kUsage, "of packed documents on CUDA: expected a multiple of 16");
      return false;
    }
    // dq is summed by atomics, whose bits the fixture would compare.
    if constexpr (std::is_same_v<Op, AttentionBackward>) {
      if (is_cudnn() && !op.deterministic) return launch(stream(), ready(op)), true;
    }
    run(op);
    return true;
  }
  void check_forward(const Pack& z) {
    const AttentionForward op = forward(z, given(z));
    if (!runs(op)) return;
    const auto want = reference::attention(values(op.q), values(op.k), values(op.v), z.sizes());
    expect_sum(op.out, want.out, want.out_magnitude, z.longest() + z.dim, "out");
    expect_sum(op.lse, want.lse, want.lse_magnitude, z.longest() + z.dim, "lse");
  }
  void check_backward(const Pack& z, bool deterministic) {
    const Given x = given(z);
    AttentionBackward op = backward(z, x, forward(z, x));
    op.deterministic = deterministic;
    if (!runs(op)) return;
    const Values out = values(op.out), lse = values(op.lse);
    const auto want = reference::attention_gradient(values(op.q), values(op.k), values(op.v), values(op.d_out),
                                                    {.out = out, .lse = lse}, z.sizes());
    const std::int64_t length = z.longest() * (z.heads / z.kv_heads) + z.dim;
    expect_sum(op.dq, want.dq, want.dq_magnitude, length, "dq");
    expect_sum(op.dk, want.dk, want.dk_magnitude, length, "dk");
    expect_sum(op.dv, want.dv, want.dv_magnitude, length, "dv");
  }
  Lengths random_lengths(std::int64_t count, std::int64_t most) {
    Lengths result;
    for (std::int64_t c = 0; c < count; ++c) {
      const auto length = static_cast<std::int64_t>(random()() % static_cast<std::uint64_t>(most));
      result.push_back(random()() % 4 == 0 ? 0 : length);
    }
    if (std::accumulate(result.begin(), result.end(), std::int64_t{0}) == 0) result.front() = most;
    return result;
  }
};
MEGALITH_OP_TESTS(PackedAttentionTest);

TEST_P(PackedAttentionTest, Forward) {
  for (const Pack& z : kPacks) {
    SCOPED_TRACE(testing::PrintToString(z));
    check_forward(z);
  }
}

TEST_P(PackedAttentionTest, Backward) {
  for (const Pack& z : kPacks) {
    SCOPED_TRACE(testing::PrintToString(z));
    check_backward(z, true);
    if (is_cudnn()) check_backward(z, false);
  }
}

TEST_P(PackedAttentionTest, RandomLengths) {
  for (int i = 0; i < 6; ++i) {
    Pack z{random_lengths(1 + i, 90), 4, i % 2 == 0 ? 2 : 4, i % 3 == 0 ? 32 : 64, i == 3 ? 20 : 0, i != 4};
    if (!z.causal) {
      for (const std::int64_t rows : z.queries) z.keys.push_back(rows == 0 ? 0 : 1 + (7 * rows) % 90);
    }
    SCOPED_TRACE(testing::PrintToString(z));
    check_forward(z);
    check_backward(z, i % 2 == 0);
  }
}

// Rows of out, lse, dq, dk and dv that belong to one document.
std::vector<Values> parts_of(const Pack& z, const std::vector<Values>& results, std::int64_t first, std::int64_t rows) {
  std::vector<Values> parts;
  const auto cut = [](const Values& x, std::int64_t from, std::int64_t to) {
    return Values(x.begin() + from, x.begin() + to);
  };
  for (const std::size_t i : {0u, 2u, 3u, 4u}) {
    const std::int64_t row = (i < 3 ? z.heads : z.kv_heads) * z.dim;
    parts.push_back(cut(results[i], first * row, (first + rows) * row));
  }
  for (std::int64_t n = 0; n < z.heads; ++n)
    parts.push_back(cut(results[1], n * z.rows() + first, n * z.rows() + first + rows));
  return parts;
}

// On the CPU, and in fp32, a document has the bits that it has alone.
TEST_P(PackedAttentionTest, ADocumentHasItsOwnBits) {
  if (is_cudnn()) GTEST_SKIP() << "cuDNN has other kernels for one sample";
  for (const std::int64_t window : {0, 40}) {
    const Pack pack{{70, 0, 129, 5, 64}, 4, 2, 40, window};
    const Given x = given(pack);
    const auto results_of = [&](const Pack& z, const Given& numbers, const AttentionBackward* saved) {
      const AttentionForward forward_op = forward(z, numbers);
      launch(stream(), ready(forward_op));
      AttentionBackward op = backward(z, numbers, forward_op);
      if (saved == nullptr) op.out = forward_op.out, op.lse = forward_op.lse;
      launch(stream(), ready(op));
      return std::vector<Values>{values(forward_op.out), values(forward_op.lse), values(op.dq), values(op.dk),
                                 values(op.dv)};
    };
    const std::vector<Values> whole = results_of(pack, x, nullptr);
    std::int64_t first = 0;
    for (const std::int64_t rows : pack.queries) {
      if (rows == 0) continue;
      Pack alone = pack;
      alone.queries = {rows};
      alone.is_one_sample = true;
      const auto of_document = [&](const Values& all, std::int64_t heads) {
        const std::int64_t row = heads * pack.dim;
        return Values(all.begin() + first * row, all.begin() + (first + rows) * row);
      };
      const Given own{of_document(x.q, pack.heads), of_document(x.k, pack.kv_heads), of_document(x.v, pack.kv_heads),
                      of_document(x.d_out, pack.heads)};
      EXPECT_EQ(parts_of(alone, results_of(alone, own, nullptr), 0, rows), parts_of(pack, whole, first, rows));
      first += rows;
    }
  }
}

TEST_P(PackedAttentionTest, ANeighborChangesNoBit) {
  const Pack pack{{70, 129, 64}, 4, 2, 64};
  const auto results_of = [&](const Given& x) {
    const AttentionForward forward_op = forward(pack, x);
    launch(stream(), ready(forward_op));
    AttentionBackward op = backward(pack, x, forward_op);
    op.out = forward_op.out, op.lse = forward_op.lse;
    launch(stream(), ready(op));
    return std::vector<Values>{values(forward_op.out), values(forward_op.lse), values(op.dq), values(op.dk),
                               values(op.dv)};
  };
  Given x = given(pack);
  const std::vector<Values> before = results_of(x);
  const auto change = [&](Values& all, std::int64_t heads) {
    for (std::int64_t i = 70 * heads * pack.dim; i < 199 * heads * pack.dim; ++i)
      all[static_cast<std::size_t>(i)] *= -3;
  };
  change(x.q, pack.heads), change(x.k, pack.kv_heads), change(x.v, pack.kv_heads), change(x.d_out, pack.heads);
  const std::vector<Values> after = results_of(x);
  EXPECT_EQ(parts_of(pack, after, 0, 70), parts_of(pack, before, 0, 70));
  EXPECT_EQ(parts_of(pack, after, 199, 64), parts_of(pack, before, 199, 64));
  EXPECT_NE(parts_of(pack, after, 70, 129), parts_of(pack, before, 70, 129));
}

TEST_P(PackedAttentionTest, ReplaysWithOtherLengths) {
  const Pack first{{70, 50, 0, 80}, 4, 2, 64}, second{{1, 120, 79, 0}, 4, 2, 64};
  const Given x = given(first);
  AttentionForward forward_op = forward(first, x);
  const Tensor begin = output({4}, DType::kInt32), length = output({4}, DType::kInt32);
  forward_op.query_documents = forward_op.key_documents = {.begin = begin, .length = length};
  forward_op.max_length = 200;
  forward_op = ready(forward_op);
  AttentionBackward op = backward(first, x, forward_op);
  op.out = forward_op.out, op.lse = forward_op.lse;
  op = ready(op);
  const auto enqueue = [&] {
    launch(stream(), forward_op);
    launch(stream(), op);
  };
  const auto results_of = [&](const Pack& z, const std::function<void()>& act) {
    const DocumentRows rows = documents(z.queries);
    launch(stream(), Copy{.src = rows.begin, .dst = begin});
    launch(stream(), Copy{.src = rows.length, .dst = length});
    act();
    return std::vector<Values>{values(forward_op.out), values(forward_op.lse), values(op.dq), values(op.dk),
                               values(op.dv)};
  };
  expect_replay_follows(stream(), first, second, enqueue, results_of);
}

TEST_P(PackedAttentionTest, FlopsCountTheExpectedPairs) {
  AttentionForward op = forward({{80, 20}, 2, 1, 8}, given({{80, 20}, 2, 1, 8}));
  const auto flops = [&op] {
    Access accesses(AttentionForward::kName);
    access(op, accesses);
    return accesses.cost().flops;
  };
  const double pair = 4 * 2 * 8;  // two products of multiplications and additions, for all heads and dims
  EXPECT_EQ(flops(), pair * 100 * 100 / 2);
  op.pairs = 80 * 80 + 20 * 20;
  EXPECT_EQ(flops(), pair * 6800 / 2);
  op.window = 10;
  EXPECT_EQ(flops(), pair * 100 * 10);
}

TEST_P(PackedAttentionTest, RefusesWhatDoesNotFit) {
  const Pack pack{{5, 3}, 2, 1, 8};
  AttentionForward op = forward(pack, given(pack));
  const auto refused = [&](std::string_view part, const std::function<void(AttentionForward&)>& change) {
    AttentionForward changed = op;
    change(changed);
    expect_refused(changed, part);
  };
  refused("op.window: expected 0, or a number of keys with a causal mask, got 3", [](AttentionForward& x) {
    x.window = 3;
    x.causal = false;
  });
  refused("op.window: expected 0, or", [](AttentionForward& x) { x.window = -1; });
  refused("op.max_length: expected at least 1, got 0", [](AttentionForward& x) { x.max_length = 0; });
  refused("op.key_documents.begin", [](AttentionForward& x) { x.key_documents = {}; });
  refused("op.query_documents.begin", [](AttentionForward& x) { x.query_documents = {}; });
  const Tensor two = input({2, 8, 2, 8}), keys = input({2, 8, 1, 8});
  refused("op.q: expected 1 sample (dim 0) of packed documents", [&](AttentionForward& x) {
    x.q = x.out = two;
    x.out = output(two.shape);
    x.k = x.v = keys;
    x.lse = output({2, 2, 8}, DType::kFp32);
  });
}

TEST_P(PackedAttentionTest, DocumentsThatDoNotFitAreAnError) {
  const Pack pack{{5, 3}, 2, 1, 16};
  const auto expect_error = [&](const Lengths& queries, const Lengths& keys, std::int64_t max_length) {
    AttentionForward op = forward(pack, given(pack));
    op.query_documents = documents(queries), op.key_documents = documents(keys);
    op.max_length = max_length;
    expect_kernel_error(op, ExitCode::kInternal, "op.query_documents, op.key_documents: document 1: expected at most");
  };
  expect_error({5, 4}, {5, 4}, 8);
  expect_error({5, 3}, {5, 2}, 8);
  expect_error({2, 3}, {2, 3}, 2);
  expect_error({5, -1}, {5, -1}, 8);
}

}  // namespace
}  // namespace megalith::test
