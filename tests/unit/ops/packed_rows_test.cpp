// Attention of a document that has a part of the rows, as context-parallel ranks share: others keep the caller's zeros.
#include <cmath>

#include "core/ops/attention/attention.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

// Extent of the queries and keys of a tensor, and the document's rows in it.
struct PackedRows {
  std::int64_t rows, first, count;
};

class PackedRowsTest : public OpTest {
 protected:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 32;

  static Values cut(const Values& of, const PackedRows& part, std::int64_t heads) {
    const std::int64_t width = heads * kDim;
    return Values(of.begin() + part.first * width, of.begin() + (part.first + part.count) * width);
  }
  Tensor zeros(const Shape& shape, DType type) {
    return inout(shape, type, Values(static_cast<std::size_t>(shape.numel()), 0.0));
  }
  DocumentRows document(const PackedRows& part) {
    const auto table = [&](std::int64_t value) {
      return input({2}, DType::kInt32, Values{static_cast<double>(value), 0});
    };
    return {.begin = table(part.first), .length = table(part.count)};
  }
  // Results of a document of these inputs; without `queries` and `keys` it has all rows.
  struct Results {
    Tensor out, dq, dk, dv;
  };
  Results attend(const Values& q, const Values& k, const Values& v, const Values& d_out, const PackedRows* queries,
                 const PackedRows* keys) {
    const Shape of_queries{1, std::ssize(q) / (kHeads * kDim), kHeads, kDim};
    const Shape of_keys{1, std::ssize(k) / (kKvHeads * kDim), kKvHeads, kDim};
    const Shape statistics{1, kHeads, of_queries[1]};
    AttentionForward op{.q = input(of_queries, dtype(), q),
                        .k = input(of_keys, dtype(), k),
                        .v = input(of_keys, dtype(), v),
                        .out = zeros(of_queries, dtype()),
                        .lse = zeros(statistics, DType::kFp32),
                        .scale = 1 / std::sqrt(static_cast<float>(kDim)),
                        .causal = false,
                        .workspace = {}};
    if (queries != nullptr) {
      op.query_documents = document(*queries);
      op.key_documents = document(*keys);
      op.max_length = of_queries[1];
    }
    launch(stream(), ready(op));
    const AttentionBackward back{.q = op.q,
                                 .k = op.k,
                                 .v = op.v,
                                 .out = op.out,
                                 .d_out = input(of_queries, dtype(), d_out),
                                 .lse = op.lse,
                                 .delta = zeros(statistics, DType::kFp32),
                                 .dq = zeros(of_queries, dtype()),
                                 .dk = zeros(of_keys, dtype()),
                                 .dv = zeros(of_keys, dtype()),
                                 .workspace = {},
                                 .scale = op.scale,
                                 .causal = false,
                                 .query_documents = op.query_documents,
                                 .key_documents = op.key_documents,
                                 .max_length = op.max_length};
    launch(stream(), ready(back));
    return {.out = op.out, .dq = back.dq, .dk = back.dk, .dv = back.dv};
  }
  void expect_part(const Tensor& got, const Tensor& want, const PackedRows& part) {
    const Values all = values(got), of_part = values(want);
    const std::int64_t begin = part.first * (std::ssize(all) / part.rows), end = begin + std::ssize(of_part);
    for (std::int64_t i = 0; i < std::ssize(all); ++i) {
      const double expected = i >= begin && i < end ? of_part[static_cast<std::size_t>(i - begin)] : 0;
      EXPECT_NEAR(all[static_cast<std::size_t>(i)], expected, dtype() == DType::kFp32 ? 1e-5 : 0.05) << i;
    }
  }
};
MEGALITH_OP_TESTS(PackedRowsTest);

TEST_P(PackedRowsTest, RowsOutsideOfTheDocumentStayZero) {
  const PackedRows queries{.rows = 40, .first = 5, .count = 17}, keys{.rows = 30, .first = 3, .count = 9};
  const Values q = normal(queries.rows * kHeads * kDim), d_out = normal(queries.rows * kHeads * kDim);
  const Values k = normal(keys.rows * kKvHeads * kDim), v = normal(keys.rows * kKvHeads * kDim);
  const Results packed = attend(q, k, v, d_out, &queries, &keys);
  const Results alone = attend(cut(q, queries, kHeads), cut(k, keys, kKvHeads), cut(v, keys, kKvHeads),
                               cut(d_out, queries, kHeads), nullptr, nullptr);
  expect_part(packed.out, alone.out, queries);
  expect_part(packed.dq, alone.dq, queries);
  expect_part(packed.dk, alone.dk, keys);
  expect_part(packed.dv, alone.dv, keys);
}

}  // namespace
}  // namespace megalith::test
