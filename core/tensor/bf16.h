// bfloat16 storage. Rounds to nearest even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace megalith {

struct bf16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2);

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline float to_float(float x) { return x; }

inline bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<std::uint16_t>(nan ? ((u >> 16) | 0x40u) : rounded)};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}

}  // namespace megalith
