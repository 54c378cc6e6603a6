// Dropout factors with the keying in core/ops/elementwise/dropout.h, from a scalar Philox 4x32-10. It follows Salmon et
// al. 2011 (SC'11, "Parallel random numbers: as easy as 1, 2, 3").
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace megalith::reference {

using Words4 = std::array<std::uint32_t, 4>;

inline Words4 philox_10_rounds(Words4 c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = 0xD2511F53ull * c[0];
    const std::uint64_t right = 0xCD9E8D57ull * c[2];
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    c = {high(right) ^ c[1] ^ key0, static_cast<std::uint32_t>(right), high(left) ^ c[3] ^ key1,
         static_cast<std::uint32_t>(left)};
    key0 += 0x9E3779B9u;  // golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return c;
}

struct DropoutMask {
  float p = 0;
  std::uint64_t seed = 0;
  std::uint64_t iteration = 0;
  int layer = 0, site = 0;
  std::uint64_t first_sample = 0;
  std::size_t sequences = 1, length = 1, columns = 1;
};

// [sequences * length, columns]: 0 if dropped, otherwise 1 / (1 - p).
inline std::vector<double> dropout_mask(const DropoutMask& m) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const Words4 key = philox_10_rounds({low(m.iteration), low(m.iteration >> 32), static_cast<std::uint32_t>(m.layer),
                                       0x03000000u | static_cast<std::uint32_t>(m.site)},
                                      low(m.seed), low(m.seed >> 32));
  std::vector<double> mask;
  for (std::size_t row = 0; row < m.sequences * m.length; ++row) {
    const std::uint64_t sample = m.first_sample + row / m.length;
    for (std::size_t column = 0; column < m.columns; ++column) {
      const Words4 words = philox_10_rounds(
          {low(column / 32 * 8 + column % 8), low(row % m.length), low(sample), low(sample >> 32)}, key[0], key[1]);
      const bool dropped = words[column / 8 % 4] < std::floor(static_cast<double>(m.p) * 0x1p32);
      mask.push_back(dropped ? 0 : 1 / (1 - static_cast<double>(m.p)));
    }
  }
  return mask;
}

}  // namespace megalith::reference
