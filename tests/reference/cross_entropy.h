// fp64 reference of softmax cross-entropy over one row.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace megalith::reference {

double log_sum_exp(std::span<const double> x);
double cross_entropy(std::span<const double> logits, std::size_t label);
std::vector<double> cross_entropy_gradient(std::span<const double> logits, std::size_t label);

}  // namespace megalith::reference
