// Choices and tables of integers, for the tests of ops on rows of ranks.
#pragma once

#include <algorithm>
#include <numeric>

#include "tests/reference/rank_rows.h"
#include "tests/support/op_test.h"

namespace megalith::test {

inline std::size_t unsigned_of(std::int64_t n) { return static_cast<std::size_t>(n); }

class RankTest : public OpTest {
 protected:
  // For each token different experts, for about one choice in `one_in` none.
  Values choices(std::int64_t tokens, std::int64_t choices, std::int64_t experts, int one_in = 5) {
    Values result, all(unsigned_of(experts));
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random());
      for (std::int64_t k = 0; k < choices; ++k)
        result.push_back(k >= experts || random()() % static_cast<unsigned>(one_in) == 0 ? -1 : all[unsigned_of(k)]);
    }
    return result;
  }
  Tensor integers(const Shape& shape, const Values& given) { return input(shape, DType::kInt32, given); }
  Tensor integers(const Shape& shape) { return output(shape, DType::kInt32); }
  Tensor bounded(Tensor x, std::int64_t rows) {
    x.bound = device_struct(static_cast<std::int32_t>(rows));
    return x;
  }
};

}  // namespace megalith::test
