// Shared code of the tests of packs: conversations of known tokens and marks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/data/pack_writer.h"
#include "tests/unit/data/data_files.h"

namespace megalith {

// Token i of conversation c, different for all conversations below 100 and tokens below 100.
inline std::int32_t pack_token(std::int64_t conversation, std::int64_t i) {
  return static_cast<std::int32_t>(conversation * 100 + i);
}
inline bool pack_token_is_trained(std::int64_t conversation, std::int64_t i) { return (conversation + i) % 3 != 0; }

// Writes packs of conversations of the given lengths, numbered in order.
inline void write_packs(const std::string& prefix, const std::vector<std::vector<std::int64_t>>& packs,
                        const PackWriterConfig& config) {
  PackWriter writer(prefix, config);
  std::int64_t conversation = 0;
  for (const std::vector<std::int64_t>& pack : packs) {
    for (const std::int64_t length : pack) {
      std::vector<std::int32_t> tokens;
      std::vector<std::uint8_t> trained;
      for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(pack_token(conversation, i));
        trained.push_back(pack_token_is_trained(conversation, i) ? 1 : 0);
      }
      writer.add_document(tokens, trained);
      ++conversation;
    }
    writer.end_pack();
  }
  writer.commit();
}

}  // namespace megalith
