// Expected results of collectives, element by element, in the order of the ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/tensor/bf16.h"
#include "parallel/comm/communicator.h"
#include "tests/distributed/collective_rig.h"

namespace megalith::test {

// Several blocks and, if the program makes them small, several chunks and messages.
inline constexpr std::int64_t kLarge = 100'003;

template <class T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) == 0) return;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0) << what << ", element " << i << " of " << got.size();
  }
}

// The sum or maximum in rank order of element i over `size` ranks.
template <class T>
T reduced(const CollectiveForm& form, ReduceOp op, int size, std::int64_t i) {
  const auto of = [&](int r) { return value<T>(form, r, i); };
  if constexpr (std::is_same_v<T, bf16>) {
    float acc = to_float(of(0));
    for (int r = 1; r < size; ++r) {
      const float x = to_float(of(r));
      acc = op == ReduceOp::kSum ? acc + x : std::max(acc, x);
    }
    return to_bf16(acc);
  } else if constexpr (std::is_integral_v<T>) {
    T acc = of(0);
    for (int r = 1; r < size; ++r) {
      acc = op == ReduceOp::kSum ? static_cast<T>(static_cast<std::uint64_t>(acc) + static_cast<std::uint64_t>(of(r)))
                                 : std::max(acc, of(r));
    }
    return acc;
  } else {
    T acc = of(0);
    for (int r = 1; r < size; ++r) acc = op == ReduceOp::kSum ? acc + of(r) : std::max(acc, of(r));
    return acc;
  }
}

template <class T>
T sum_in_order(const std::vector<T>& parts) {
  if constexpr (std::is_same_v<T, bf16>) {
    float sum = to_float(parts[0]);
    for (std::size_t i = 1; i < parts.size(); ++i) sum += to_float(parts[i]);
    return to_bf16(sum);
  } else {
    T sum = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) sum += parts[i];
    return sum;
  }
}

inline std::string label(const char* call, DType dtype, std::int64_t n, const Communicator& group) {
  return std::string(call) + " " + std::string(name_of(dtype)) + " [" + std::to_string(n) + "] on rank " +
         std::to_string(group.rank()) + " of " + std::to_string(group.size());
}

}  // namespace megalith::test
