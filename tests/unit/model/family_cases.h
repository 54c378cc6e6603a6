// Tests of each family in fp32 and bf16, on every backend.
#pragma once

#include <string>
#include <vector>

#include "tests/reference/gpt.h"
#include "tests/support/device_cases.h"
#include "tests/unit/model/model_families.h"

namespace megalith::test {

struct FamilyCase {
  std::string family;
  DType dtype;
  DeviceType device;
};
inline void PrintTo(const FamilyCase& c, std::ostream* out) { *out << c.family; }

inline std::string name_of_family_case(const testing::TestParamInfo<FamilyCase>& info) {
  const FamilyCase& c = info.param;
  return c.family + "_" + std::string(name_of(c.dtype)) + "_" + std::string(name_of(c.device));
}

inline std::vector<FamilyCase> family_cases() {
  std::vector<FamilyCase> all;
  for (const DeviceType device : devices()) {
    for (const ModelFamily& family : model_families()) {
      for (const DType dtype : {DType::kFp32, DType::kBf16}) all.push_back({family.name, dtype, device});
    }
  }
  return all;
}

class FamilyTest : public OnDevice<FamilyCase> {
 protected:
  ModelConfig config() const { return family(GetParam().family, GetParam().dtype, device()); }
  // An independent reference's at the model's dtype.
  reference::GptArithmetic own_arithmetic() const {
    return GetParam().dtype == DType::kFp32 ? reference::GptArithmetic::kFp32 : reference::GptArithmetic::kBf16Storage;
  }
};

}  // namespace megalith::test
