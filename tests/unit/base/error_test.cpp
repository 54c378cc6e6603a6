#include "core/base/error.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith {
namespace {

std::string message_of(const Fault& fault) {
  try {
    fail(fault);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), fault.code);
    return error.what();
  }
  return "";
}

TEST(Error, SaysPlaceSubjectExpectedGotAndRemedyInOneLine) {
  const std::string message = message_of({.code = ExitCode::kFormat,
                                          .subject = "op.weight",
                                          .expected = "shape [4096]",
                                          .got = "[4097]",
                                          .remedy = "check the checkpoint"});
  EXPECT_THAT(message, HasSubstr("tests/unit/base/error_test.cpp:"));
  EXPECT_THAT(message, HasSubstr("op.weight: expected shape [4096], got [4097]"));
  EXPECT_THAT(message, HasSubstr("check the checkpoint"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

TEST(Error, LeavesOutThePlaceForUserInput) {
  const std::string message =
      message_of({.code = ExitCode::kUsage, .subject = "--num-layers", .got = "-1", .show_place = false});
  EXPECT_THAT(message, Not(HasSubstr(".cpp")));
  EXPECT_THAT(message, Not(HasSubstr("expected")));
  EXPECT_THAT(message, HasSubstr("--num-layers"));
  EXPECT_THAT(message, HasSubstr("got -1"));
}

TEST(Error, RefusesUsageAndFormatsWithTheirExitCodes) {
  const auto expect = [](auto refuse, ExitCode code) {
    try {
      refuse();
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_STREQ(error.what(), "it: expected a, got b; do c");
    }
  };
  expect([] { refuse_usage("it", {.expected = "a", .got = "b", .remedy = "do c"}); }, ExitCode::kUsage);
  expect([] { refuse_format("it", "a", "b", "do c"); }, ExitCode::kFormat);
  EXPECT_THROW(refuse_usage("it", {.expected = "a", .got = "b"}), Error);
}

TEST(Error, RequireThrowsOnlyWhenTheConditionIsFalse) {
  EXPECT_NO_THROW(require(true, "holds"));
  try {
    require(false, "the list is sorted");
    FAIL() << "require returned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("the list is sorted"));
  }
}

TEST(Error, IsOneLineWhateverItShows) {
  try {
    fail({.subject = "a\nb", .got = "\x1b[1m\x7f\xc3\xa9", .show_place = false});
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a\\nb: got \\x1b[1m\\x7f\xc3\xa9");
  }
}

}  // namespace
}  // namespace megalith
