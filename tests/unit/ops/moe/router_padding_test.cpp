// Padding rows of the router's ops: other rows have the values that they have without padding.
#include <array>
#include <numeric>

#include "tests/unit/ops/moe/router_cases.h"

namespace megalith::test {
namespace {

class RouterPadding : public RouterOpTest {
 protected:
  static constexpr std::int64_t kExperts = 12, kChoices = 4;

  // Rows of `x` that are not padding.
  Values kept(const Values& x, std::int64_t length) const {
    Values rows;
    for (std::size_t t = 0; t < positions_.size(); ++t) {
      const Values row = row_of(x, static_cast<std::int64_t>(t), length);
      if (positions_[t] >= 0) rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }
  // Padding of `x` has this value.
  void expect_padding(const Values& x, std::int64_t length, double value) const {
    for (std::size_t t = 0; t < positions_.size(); ++t) {
      if (positions_[t] >= 0) continue;
      for (const double of_row : row_of(x, static_cast<std::int64_t>(t), length)) EXPECT_EQ(of_row, value);
    }
  }
  std::int64_t tokens() const { return std::ssize(positions_); }

  const Values positions_ = {0, 1, 2, -1, -1, 0, 1, 2, 3, -1, 0, 0, -1, -1};
  const std::int64_t kept_tokens_ = 9;
};
INSTANTIATE_TEST_SUITE_P(Backends, RouterPadding, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

TEST_P(RouterPadding, ChangesNoOtherRow) {
  for (const RouterScore score : kScores) {
    SCOPED_TRACE(static_cast<int>(score));
    const Values x = normal(tokens() * kExperts, 2), gradients = normal(tokens() * kChoices, 1);
    const Tensor loads = input({kExperts}, DType::kFp32, 1);
    const MicrobatchParameters* parameters = device_struct(MicrobatchParameters{.router_scale = 0.25f});
    // Choices, weights, gradients and losses with positions, or without padding.
    const auto results = [&](bool padded) {
      const std::int64_t count = padded ? tokens() : kept_tokens_;
      const Tensor logits = input({count, kExperts}, DType::kFp32, padded ? x : kept(x, kExperts));
      const Tensor choice = output({count, kChoices}, DType::kInt32), weight = output({count, kChoices}, DType::kFp32);
      const Tensor d_logits = output({count, kExperts}, DType::kFp32);
      const Tensor aux = inout({1}, DType::kFp32, {3.0}), z = inout({1}, DType::kFp32, {-2.0});
      launch(stream(), RouterTopk{.logits = logits,
                                  .positions = padded ? input({count}, DType::kInt32, positions_) : Tensor{},
                                  .choice = choice,
                                  .weight = weight,
                                  .score = score});
      launch(stream(), RouterTopkBackward{.logits = logits,
                                          .choice = choice,
                                          .weight = weight,
                                          .d_weight = input({count, kChoices}, DType::kFp32,
                                                            padded ? gradients : kept(gradients, kChoices)),
                                          .loads = loads,
                                          .parameters = parameters,
                                          .d_logits = d_logits,
                                          .score = score,
                                          .z_scale = 0.5f});
      launch(stream(), ready(RouterLosses{.logits = logits,
                                          .choice = padded ? choice : Tensor{},
                                          .loads = loads,
                                          .aux = aux,
                                          .z = z,
                                          .score = score,
                                          .z_scale = 0.5f}));
      return std::array{values(choice), values(weight), values(d_logits), values(aux), values(z)};
    };
    const auto [choices, weights, d_logits, aux, z] = results(true);
    const auto [want_choices, want_weights, want_d_logits, want_aux, want_z] = results(false);
    EXPECT_EQ(kept(choices, kChoices), want_choices);
    EXPECT_EQ(kept(weights, kChoices), want_weights);
    EXPECT_EQ(kept(d_logits, kExperts), want_d_logits);
    EXPECT_NEAR(aux[0], want_aux[0], 1e-5);
    EXPECT_NEAR(z[0], want_z[0], 1e-4);
    expect_padding(choices, kChoices, -1);
    expect_padding(weights, kChoices, 0);
    expect_padding(d_logits, kExperts, 0);
  }
}

}  // namespace
}  // namespace megalith::test
