// Tests of code above the ops, on every backend of this build. A suite's parameter is a DeviceType, or a struct with a
// member `device`. It derives from OnDevice and is instantiated with a case for each of devices(), named by backend:
//     class StoreTest : public test::OnDevice<DeviceType> {};
//     INSTANTIATE_TEST_SUITE_P(Backends, StoreTest, testing::ValuesIn(test::devices()), test::name_of_device_case);
// If no GPU can be used, the cases of CUDA are skipped with the reason.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "core/device/device.h"
#include "tests/support/op_test.h"

namespace megalith::test {

inline std::vector<DeviceType> devices() {
  if (cuda_built()) return {DeviceType::kCpu, DeviceType::kCuda};
  return {DeviceType::kCpu};
}

inline std::string name_of_device_case(const testing::TestParamInfo<DeviceType>& info) {
  return std::string(name_of(info.param));
}

template <class Case>
class OnDevice : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(device()); !reason.empty()) GTEST_SKIP() << reason;
  }

  DeviceType device() const {
    if constexpr (std::is_same_v<Case, DeviceType>) {
      return this->GetParam();
    } else {
      return this->GetParam().device;
    }
  }
};

}  // namespace megalith::test
