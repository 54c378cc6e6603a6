// Documents of samples that several ranks share: the blocks of all ranks cover each visible pair of rows once.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/ops/sequence_part.h"
#include "parallel/context_parallel/document_parts.h"

namespace megalith {
namespace {

using Pairs = std::multiset<std::pair<std::int64_t, std::int64_t>>;

// Pairs of query and key of a block, as rows of the sample.
void add_pairs(const DocumentBlock& block, std::int64_t owner, bool causal, const SharedSample& sample, Pairs& pairs) {
  const std::int64_t mine = sample.length / sample.ranks;
  const SequencePart of_queries = part_of_sequence(sample.length, sample.rank, sample.ranks);
  const SequencePart of_keys = part_of_sequence(sample.length, owner, sample.ranks);
  for (std::int64_t q = 0; q < block.queries; ++q) {
    for (std::int64_t k = 0; k < (causal ? q + 1 : block.keys); ++k)
      pairs.emplace(of_queries.position(block.first_query + q, mine), of_keys.position(block.first_key + k, mine));
  }
}

TEST(DocumentParts, BlocksOfAllRanksCoverEachVisiblePairOnce) {
  std::mt19937_64 random(5);
  std::int64_t shared = 0, empty = 0;
  for (const std::int64_t ranks : {1, 2, 4}) {
    for (int draw = 0; draw < 60; ++draw) {
      const std::int64_t length = 48, most = 1 + static_cast<std::int64_t>(random() % 48);
      std::vector<DocumentExtent> documents;
      for (std::int64_t begin = 0; begin < length; begin = documents.back().end)
        documents.push_back(
            {begin, std::min<std::int64_t>(
                        length, begin + 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)))});
      Pairs want, got;
      for (const DocumentExtent& document : documents) {
        for (std::int64_t q = document.begin; q < document.end; ++q)
          for (std::int64_t k = document.begin; k <= q; ++k) want.emplace(q, k);
      }
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const SharedSample sample{.length = length, .rank = rank, .ranks = ranks};
        for (const DocumentExtent& document : documents) add_pairs(own_part(document, sample), rank, true, sample, got);
        for (std::int64_t owner = 0; owner < ranks; ++owner) {
          if (owner == rank) continue;
          const DocumentBlock block = shared_block(documents, owner, sample);
          add_pairs(block, owner, false, sample, got);
          ++(block.queries > 0 ? shared : empty);
        }
      }
      EXPECT_EQ(got, want);
    }
  }
  EXPECT_GT(shared, 50);
  EXPECT_GT(empty, 50);
}

}  // namespace
}  // namespace megalith
