// Shared code of the tests of this folder: data sets of the golden files' pattern.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/indexed_dataset.h"
#include "tests/support/error_of.h"
#include "tests/support/test_folder.h"

namespace megalith {

// The pattern of tests/golden/data/generate.py: its sequence_lengths() and token().
inline std::vector<std::int32_t> golden_sequence(std::int64_t sequence, std::int64_t spread) {
  const std::int64_t length = (sequence * sequence * 17 + sequence * 5 + 3) % spread;
  std::vector<std::int32_t> tokens;
  for (std::int64_t t = 0; t < length; ++t) tokens.push_back(static_cast<std::int32_t>((sequence * 31 + t * 7) % 251));
  return tokens;
}

inline void write_golden_dataset(const std::string& prefix, std::int64_t count, std::int64_t spread,
                                 TokenType type = TokenType::kU16) {
  IndexedDatasetWriter writer(prefix, type);
  for (std::int64_t s = 0; s < count; ++s) writer.add_document(golden_sequence(s, spread));
  writer.commit();
}

}  // namespace megalith
