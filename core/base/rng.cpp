#include "core/base/rng.h"

#include <cmath>

#include "core/base/normal.h"

namespace megalith {

void fill_normal(std::span<float> out, const NormalNumbers& numbers) {
  const PhiloxKey key = numbers.key();
  const auto count = static_cast<std::int64_t>(out.size());
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t element = numbers.offset + i;
    const auto block = static_cast<std::uint64_t>(element / 4);
    const PhiloxCounter words =
        philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key);
    const NormalBlock normals = normal_block({words[0], words[1], words[2], words[3]});
    for (std::int64_t word = element % 4; word < 4 && i < count; ++word, ++i) {
      out[static_cast<std::size_t>(i)] =
          static_cast<float>(std::fma(normals.value[word], double{numbers.std}, double{numbers.mean}));
    }
  }
}

}  // namespace megalith
