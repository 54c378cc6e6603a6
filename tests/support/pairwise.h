// A choice of cases of a product of factors: each two values of two factors occur together at least once, if any case
// has them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace megalith::test {

template <std::size_t N>
using Combination = std::array<int, N>;  // the value of each factor, from 0 on

// Value of a factor in a case, among these.
template <class T, std::size_t N>
const T& at(const std::vector<T>& values, const Combination<N>& c, int factor) {
  return values[static_cast<std::size_t>(c[static_cast<std::size_t>(factor)])];
}

// 0, 1, ...: all values of a factor.
inline std::vector<int> numbers(std::size_t count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

template <std::size_t N>
std::vector<Combination<N>> combinations(const std::array<std::vector<int>, N>& values) {
  std::vector<Combination<N>> all{Combination<N>{}};
  for (std::size_t factor = 0; factor < N; ++factor) {
    std::vector<Combination<N>> wider;
    for (Combination<N> c : all) {
      for (const int value : values[factor]) {
        c[factor] = value;
        wider.push_back(c);
      }
    }
    all = std::move(wider);
  }
  return all;
}

// Picks the case with the most new pairs, again and again. Each value of `also` is in a case too.
template <std::size_t N>
std::vector<Combination<N>> pairwise(const std::vector<Combination<N>>& all,
                                     const std::function<int(const Combination<N>&)>& also = nullptr) {
  std::size_t values = 0, others = 0;  // most values of a factor, values of `also`
  for (const Combination<N>& c : all) {
    values = std::max(values, static_cast<std::size_t>(*std::ranges::max_element(c)) + 1);
    if (also) others = std::max(others, static_cast<std::size_t>(also(c)) + 1);
  }
  const std::size_t pairs = N * N * values * values;
  const auto for_each_pair = [&](const Combination<N>& c, auto&& visit) {
    const auto value = [&](std::size_t factor) { return static_cast<std::size_t>(c[factor]); };
    for (std::size_t a = 0; a < N; ++a) {
      for (std::size_t b = a + 1; b < N; ++b) visit(((a * N + b) * values + value(a)) * values + value(b));
    }
    if (also) visit(pairs + static_cast<std::size_t>(also(c)));
  };
  std::vector<bool> missing(pairs + others, false);
  for (const Combination<N>& c : all) for_each_pair(c, [&](std::size_t pair) { missing[pair] = true; });
  std::vector<std::int64_t> at_most(all.size(), std::numeric_limits<std::int64_t>::max());  // gains, which only fall
  for (std::vector<Combination<N>> chosen;;) {
    std::int64_t most = 0;
    Combination<N> best{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (at_most[i] <= most) continue;
      std::int64_t gain = 0;
      for_each_pair(all[i], [&](std::size_t pair) { gain += missing[pair] ? 1 : 0; });
      at_most[i] = gain;
      if (gain > most) best = all[i];
      most = std::max(most, gain);
    }
    if (most == 0) return chosen;
    for_each_pair(best, [&](std::size_t pair) { missing[pair] = false; });
    chosen.push_back(best);
  }
}

}  // namespace megalith::test
