// Shared code of the tests of the router's ops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "moe/ops/router.h"
#include "tests/reference/router.h"
#include "tests/support/op_test.h"

namespace megalith::test {

inline constexpr RouterScore kScores[] = {RouterScore::kSoftmaxOfChosen, RouterScore::kSoftmax, RouterScore::kSigmoid};
inline constexpr double kLogitStride = 1e-5;  // far above the rounding of a sum of scores in fp32

struct Routing {
  std::int64_t tokens, experts, choices, groups = 1, open_groups = 1;
  bool bias = false;
};

inline reference::RouterSettings settings(const Routing& routing, RouterScore score, float scaling) {
  return {.is_sigmoid = score == RouterScore::kSigmoid,
          .over_all = score == RouterScore::kSoftmax,
          .scaling = static_cast<double>(scaling),
          .top_k = static_cast<std::size_t>(routing.choices),
          .groups = static_cast<std::size_t>(routing.groups),
          .open_groups = static_cast<std::size_t>(routing.open_groups)};
}

inline Values row_of(const Values& x, std::int64_t row, std::int64_t length) {
  return Values(x.begin() + row * length, x.begin() + (row + 1) * length);
}

// Number of roundings in the exponentials exp(x - max), of the difference and of the function itself. Those of the sum
// below it enter as a mean with their own weights.
struct Roundings {
  double max = 0, of_sum = 1;
  explicit Roundings(const Values& x) : max(*std::max_element(x.begin(), x.end())) {
    const Values p = reference::softmax(x);
    for (std::size_t i = 0; i < x.size(); ++i) of_sum += p[i] * (max - x[i]);
  }
  double of(double x) const { return 1 + (max - x) + of_sum; }
};
inline constexpr double kSigmoidRoundings = 3;  // in a sigmoid, in a sum of sigmoids, and in 1 - sigmoid

class RouterOpTest : public OpTest {
 protected:
  // Logits whose choices in fp32 are those in fp64.
  Tensor separate_logits(const Routing& routing, const reference::RouterSettings& with, const Values& bias) {
    Values all;
    for (std::int64_t t = 0; t < routing.tokens; ++t) {
      Values row;
      do {
        row = normal(routing.experts, 2);
        for (double& x : row) x = static_cast<double>(static_cast<float>(x));
      } while (reference::choose_experts(row, bias, with).gap < kLogitStride);
      all.insert(all.end(), row.begin(), row.end());
    }
    return input({routing.tokens, routing.experts}, DType::kFp32, all);
  }
};

}  // namespace megalith::test
