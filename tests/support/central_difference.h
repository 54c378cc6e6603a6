// Checks an analytic gradient of an fp64 reference against central differences, (f(x + h) - f(x - h)) / 2h.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace megalith::test {

// `value(x)` is a scalar function, `gradient` its claimed gradient at x. The difference quotient is off by about
// h^2 |f'''| / 6 + 2^-53 |f| / h; `tolerance` is relative to 1 + |gradient|.
template <class Function>
void expect_gradient(Function&& value, std::vector<double> x, const std::vector<double>& gradient, double h = 1e-5,
                     double tolerance = 1e-8) {
  ASSERT_EQ(x.size(), gradient.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = value(x);
    x[i] = at - h;
    const double below = value(x);
    x[i] = at;
    const double quotient = (above - below) / (2 * h);
    EXPECT_NEAR(gradient[i], quotient, tolerance * (1 + std::abs(quotient))) << "element " << i << " at " << at;
  }
}

}  // namespace megalith::test
