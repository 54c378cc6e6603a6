// Tests of --moe-router-force-load-balancing: a token's logits are bitwise equal on any rank.
#include "moe/random_logits.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace megalith {
namespace {

constexpr std::int64_t kDrawnSequences = 3, kDrawnLength = 16, kExperts = 6;
using Rows = std::vector<std::vector<float>>;

Rows drawn(std::int64_t count, const RowsOfSequences& rows) {
  std::vector<float> values(static_cast<std::size_t>(count * kExperts));
  Stream stream(DeviceType::kCpu, "compute");
  draw_logits(stream, Tensor(values.data(), DType::kFp32, {count, kExperts}),
              {.seed = 7, .name_hash = hash_name("router.random logits"), .std = 1}, rows);
  stream.synchronize();
  Rows out;
  for (auto row = values.begin(); row != values.end(); row += kExperts) out.emplace_back(row, row + kExperts);
  return out;
}

TEST(RandomLogits, DependOnSequenceAndPositionAlone) {
  const Rows whole = drawn(kDrawnSequences * kDrawnLength, {.seq_length = kDrawnLength});
  EXPECT_EQ(std::set(whole.begin(), whole.end()).size(), whole.size());
  for (const std::int64_t context : {1, 2, 4}) {
    const std::int64_t length = kDrawnLength / context, rows = kDrawnSequences * length;
    for (const std::int64_t tensor : {1, 2, 3}) {  // with 3, a rank ends within a sequence
      if (rows % tensor != 0) continue;
      for (std::int64_t rank = 0; rank < context * tensor; ++rank) {
        SCOPED_TRACE(testing::Message() << "cp " << context << ", tp " << tensor << ", rank " << rank);
        const SequencePart part = part_of_sequence(kDrawnLength, rank / tensor, context);
        const std::int64_t count = rows / tensor, first = rank % tensor * count;
        const Rows own = drawn(count, {.first = first, .seq_length = length, .part = part});
        for (std::int64_t row = 0; row < count; ++row) {
          const std::int64_t sequence = (first + row) / length;
          const std::int64_t position = part.position((first + row) % length, length);
          EXPECT_EQ(own[static_cast<std::size_t>(row)],
                    whole[static_cast<std::size_t>(sequence * kDrawnLength + position)]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith
