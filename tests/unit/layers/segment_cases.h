// Every segment of core/layers in its variants, for the tests that hold for each of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/segment_harness.h"

namespace megalith::test {

struct NamedCase {
  std::string name;
  SegmentCase test;
  bool dropout = false;
};

// fp32 and bf16 ("attention_gqa_rope_bf16").
std::vector<NamedCase> all_segment_cases();
NamedCase segment_case(const std::string& name);
std::string name_of_segment_case(const testing::TestParamInfo<NamedCase>& info);
void PrintTo(const NamedCase& c, std::ostream* out);

}  // namespace megalith::test
