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

// fp32, bf16, and bf16 with bf16 gradients, on every backend of this build ("attention_gqa_rope_bf16_cuda").
std::vector<NamedCase> all_segment_cases();
std::vector<NamedCase> all_segment_cases(DeviceType device);
NamedCase segment_case(const std::string& name, DeviceType device = DeviceType::kCpu);  // named without the backend
std::string name_of_segment_case(const testing::TestParamInfo<NamedCase>& info);
void PrintTo(const NamedCase& c, std::ostream* out);

}  // namespace megalith::test
