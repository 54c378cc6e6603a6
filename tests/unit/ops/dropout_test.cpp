#include "core/ops/elementwise/dropout.h"

#include <cmath>

#include "core/base/rng.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class DropoutTest : public OpTest {
 protected:
  const MicrobatchParameters* at(std::int64_t iteration, std::int64_t first_sample) {
    return device_struct(MicrobatchParameters{.iteration = iteration, .first_sample = first_sample});
  }
  Tensor ones(std::int64_t rows, std::int64_t columns) {
    return input({rows, columns}, dtype(), Values(static_cast<std::size_t>(rows * columns), 1.0));
  }
};
MEGALITH_OP_TESTS(DropoutTest);

// The key of an element as the header documents it, one element at a time.
bool dropped(const Dropout& op, std::int64_t iteration, std::int64_t sample, std::int64_t position,
             std::int64_t column) {
  const auto word = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  const PhiloxKey key =
      derive_key(op.seed, {word(iteration), word(iteration >> 32), word(op.layer), kRngDropout | word(op.site)});
  const PhiloxCounter words =
      philox4x32_10({word(column / 32 * 8 + column % 8), word(position), word(sample), word(sample >> 32)}, key);
  return words[static_cast<std::size_t>(column / 8 % 4)] < static_cast<double>(op.p) * 4294967296.0;
}

TEST_P(DropoutTest, DropsWhatTheKeySays) {
  for (const std::int64_t columns : {1, 8, 31, 32, 33, 100}) {
    const std::int64_t rows = 6, rows_per_sample = 3, iteration = (1ll << 33) + 5, first_sample = (1ll << 32) - 1;
    const Tensor x = input({rows, columns + 3}).slice(1, 1, columns);
    const Tensor whole = output({rows, columns + 3}), y = whole.slice(1, 2, columns);
    const Dropout op{.x = x,
                     .y = y,
                     .p = 0.3f,
                     .seed = 0xABCDEF0123456789u,
                     .layer = 3,
                     .site = 1,
                     .rows_per_sample = rows_per_sample,
                     .parameters = at(iteration, first_sample)};
    run(op);
    Values want = values(x);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        double& value = want[static_cast<std::size_t>(r * columns + c)];
        const bool drop = dropped(op, iteration, first_sample + r / rows_per_sample, r % rows_per_sample, c);
        value = drop ? 0 : value / (1 - static_cast<double>(op.p));
      }
    }
    expect_close(y, want);
    expect_untouched(whole.slice(1, 0, 2));
    expect_untouched(whole.slice(1, columns + 2, 1));
  }
  const Tensor none = input({0, 8});
  run(Dropout{.x = none, .y = output({0, 8}), .p = 0.5f, .parameters = at(1, 0)});
}

TEST_P(DropoutTest, ZeroProbabilityKeepsEverything) {
  const Tensor x = input({4, 40}), y = output({4, 40});
  const Dropout op{.x = x, .y = y, .p = 0, .rows_per_sample = 2, .parameters = at(1, 0)};
  run(op, {{op.parameters, "nothing is drawn"}});
  EXPECT_EQ(values(y), values(x));
}

TEST_P(DropoutTest, WorksInPlaceAndOnGradients) {
  const Values given = normal(3 * 70);
  const Tensor x = input({3, 70}, dtype(), given), y = output({3, 70}), together = inout({3, 70}, dtype(), given);
  Dropout op{.x = x, .y = y, .p = 0.5f, .seed = 4, .rows_per_sample = 3, .parameters = at(2, 9)};
  run(op);
  const Values forward = values(y);
  op.x = op.y = together;
  run(op);
  EXPECT_EQ(values(together), forward);
  // The mask of the gradient equals that of the value.
  const Tensor dy = ones(3, 70), dx = output({3, 70});
  op.x = dy, op.y = dx;
  run(op);
  const Values backward = values(dx);
  for (std::size_t i = 0; i < backward.size(); ++i) EXPECT_EQ(backward[i] == 0, forward[i] == 0);
}

// One batch of 4 samples of 6 positions and 96 columns, computed in one piece. Any split by a layout or microbatch size
// gives the same bits.
TEST_P(DropoutTest, AnyLayoutGivesTheSameBits) {
  const std::int64_t samples = 4, positions = 6, columns = 96;
  const Tensor x = ones(samples * positions, columns), whole = output({samples * positions, columns});
  const Dropout base{.p = 0.25f, .seed = 77, .layer = 5, .site = 2, .rows_per_sample = positions};
  Dropout op = base;
  op.x = x, op.y = whole, op.parameters = at(10, 100);
  run(op);
  const Values want = values(whole);
  const auto expect_part = [&](const Tensor& y, std::int64_t row, std::int64_t column, const char* what) {
    const Values got = values(y);
    for (std::int64_t r = 0; r < y.size(0); ++r) {
      for (std::int64_t c = 0; c < y.size(1); ++c) {
        ASSERT_EQ(got[static_cast<std::size_t>(r * y.size(1) + c)],
                  want[static_cast<std::size_t>((row + r) * columns + column + c)])
            << what << " " << r << " " << c;
      }
    }
  };
  for (const std::int64_t micro : {1, 2}) {  // microbatches of `micro` samples
    for (std::int64_t first = 0; first < samples; first += micro) {
      op = base;
      op.x = x.slice(0, first * positions, micro * positions), op.y = output({micro * positions, columns});
      op.parameters = at(10, 100 + first);
      run(op);
      expect_part(op.y, first * positions, 0, "microbatch");
    }
  }
  for (const std::int64_t begin : {0, 3}) {  // the sequence in two halves
    op = base;
    op.rows_per_sample = 3, op.part.first = begin;
    op.x = x.slice(0, positions + begin, 3), op.y = output({3, columns});
    op.parameters = at(10, 101);
    run(op);
    expect_part(op.y, positions + begin, 0, "sequence part");
  }
  for (const std::int64_t begin : {0, 8, 16}) {  // all rows in three parts, which cut samples
    op = base;
    op.first_row = begin;
    op.x = x.slice(0, begin, 8), op.y = output({8, columns});
    op.parameters = at(10, 100);
    run(op);
    expect_part(op.y, begin, 0, "row part");
  }
  for (const std::int64_t begin : {0, 32, 64}) {  // columns in three parts
    op = base;
    op.first_column = begin;
    op.x = x.slice(1, begin, 32), op.y = output({samples * positions, 32});
    op.parameters = at(10, 100);
    run(op);
    expect_part(op.y, 0, begin, "column part");
  }
}

// Rate, and independence of everything that is in the key: masks that differ in one part of it agree by chance only.
TEST_P(DropoutTest, RateAndIndependence) {
  const std::int64_t rows = 256, columns = 1024;
  const auto n = static_cast<double>(rows * columns);
  const Tensor x = ones(rows, columns), y = output({rows, columns});
  const double p = 0.2;
  const auto mask = [&](Dropout op, std::int64_t iteration, std::int64_t first_sample) {
    op.x = x, op.y = y, op.p = static_cast<float>(p), op.rows_per_sample = 64;
    op.parameters = at(iteration, first_sample);
    launch(stream(), op);
    Values result = values(y);
    for (double& value : result) value = value == 0 ? 1 : 0;
    return result;
  };
  const Values base = mask({.seed = 1}, 1, 0);
  double count = 0;
  for (const double d : base) count += d;
  EXPECT_NEAR(count / n, p, 5 * std::sqrt(p * (1 - p) / n));
  // Covariance of two masks is 0 within five standard deviations.
  const auto expect_independent = [&](const Values& other, const char* what) {
    double both = 0;
    for (std::size_t i = 0; i < base.size(); ++i) both += (base[i] - p) * (other[i] - p);
    EXPECT_NEAR(both / n, 0, 5 * p * (1 - p) / std::sqrt(n)) << what;
  };
  expect_independent(mask({.seed = 2}, 1, 0), "seed");
  expect_independent(mask({.seed = 1, .layer = 1}, 1, 0), "layer");
  expect_independent(mask({.seed = 1, .site = 1}, 1, 0), "site");
  expect_independent(mask({.seed = 1}, 2, 0), "iteration");
  expect_independent(mask({.seed = 1}, 1, 4), "sample");
  for (const std::size_t shift : {std::size_t{1}, std::size_t{8}, std::size_t{32}, static_cast<std::size_t>(columns)}) {
    Values shifted(base.begin() + static_cast<std::ptrdiff_t>(shift), base.end());
    shifted.resize(base.size(), p);
    expect_independent(shifted, "neighbour");
  }
}

TEST_P(DropoutTest, Refusals) {
  const Tensor x = input({4, 8}), y = output({4, 8});
  const Dropout good{.x = x, .y = y, .p = 0.5f, .parameters = at(1, 0)};
  Dropout op = good;
  op.p = 1;
  expect_refused(op, "op.p: expected 0 <= p < 1, got 1");
  op.p = std::nanf("");
  expect_refused(op, "op.p");
  op = good, op.rows_per_sample = 0;
  expect_refused(op, "op.rows_per_sample");
  op = good, op.first_row = -1;
  expect_refused(op, "op.first_row");
  op = good, op.first_column = 8;
  expect_refused(op, "multiple of 32");
}

}  // namespace
}  // namespace megalith::test
