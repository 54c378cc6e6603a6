// The matchers of GoogleMock that many tests use, without their namespace.
#pragma once

#include <gmock/gmock.h>

namespace megalith {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

}  // namespace megalith
