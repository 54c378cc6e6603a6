#include "tests/style/budgets.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

std::string lines(int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += "int a;\n";
  return out;
}

TEST(Budgets, OfFoldersCountSubfoldersByThemselves) {
  std::map<std::string, std::string> texts;
  for (int i = 0; i < kMaxFilesOfFolder; ++i) {
    texts["core/a/" + std::to_string(i) + ".h"] = "";
    texts["core/a/b/" + std::to_string(i) + ".h"] = "";
  }
  EXPECT_THAT(check_budgets(texts, {}), IsEmpty());
  texts["core/a/more.h"] = "";
  EXPECT_THAT(check_budgets(texts, {}), ElementsAre("core/a: 41 source files, at most 40"));
}

TEST(Budgets, OfFilesHaveExceptionsThatAreNeeded) {
  const std::vector<Exception> longer = {{"core/a.cpp", "", 410, "a table"}};
  EXPECT_THAT(check_budgets({{"core/a.cpp", lines(kMaxLinesOfFile)}}, {}), IsEmpty());
  EXPECT_THAT(check_budgets({{"core/a.cpp", lines(401)}}, {}), ElementsAre("core/a.cpp: 401 lines, at most 400"));
  EXPECT_THAT(check_budgets({{"core/a.cpp", lines(410)}}, longer), IsEmpty());
  EXPECT_THAT(check_budgets({{"core/a.cpp", lines(411)}}, longer), ElementsAre("core/a.cpp: 411 lines, at most 410"));
  const char* const idle = "core/a.cpp: needs no exception in tests/style/budgets.cpp";
  EXPECT_THAT(check_budgets({{"core/a.cpp", lines(400)}}, longer), ElementsAre(idle));
  EXPECT_THAT(check_budgets({}, longer), ElementsAre(idle));
  EXPECT_THAT(check_budgets({}, std::vector<Exception>(11)),
              testing::Contains("tests/style/budgets.cpp: more than ten exceptions"));
}

std::string function(const std::string& name, int n) { return "void " + name + "() {\n" + lines(n - 2) + "}\n"; }

TEST(Budgets, OfFunctionsAreLargerForKernels) {
  const int cpp = kMaxLinesOfFunction, cuda = kMaxLinesOfKernel;
  EXPECT_THAT(check_budgets({{"core/a.cpp", function("f", cpp)}, {"core/b.cu", function("g", cuda)}}, {}), IsEmpty());
  EXPECT_THAT(check_budgets({{"core/a.cpp", "\n" + function("f", cpp + 1)}}, {}),
              ElementsAre("core/a.cpp:2: f: 61 lines, at most 60"));
  for (const char* const path : {"core/b.cu", "core/b.cuh"}) {
    EXPECT_THAT(check_budgets({{path, function("g", cuda + 1)}}, {}),
                ElementsAre(std::string(path) + ":1: g: 151 lines, at most 150"));
  }
  EXPECT_THAT(check_budgets({{"core/a.cpp", "void f() {\n"}}, {}),
              ElementsAre("core/a.cpp: braces do not balance, so the lines of its functions cannot be counted"));
}

TEST(Budgets, OfFunctionsHaveExceptionsByBeginningsOfNames) {
  const std::vector<Exception> longer = {{"core/a_", "add_", 70, "tables"}};
  EXPECT_THAT(check_budgets({{"core/a_b.cpp", function("add_b", 70)}}, longer), IsEmpty());
  EXPECT_THAT(check_budgets({{"core/a_b.cpp", function("add_b", 71)}}, longer),
              ElementsAre("core/a_b.cpp:1: add_b: 71 lines, at most 70"));
  const std::string idle = "core/a_: add_: needs no exception in tests/style/budgets.cpp";
  EXPECT_THAT(check_budgets({{"core/a_b.cpp", function("add_b", 60)}}, longer), ElementsAre(idle));
  EXPECT_THAT(check_budgets({{"core/a_b.cpp", function("run", 61)}}, longer),
              ElementsAre("core/a_b.cpp:1: run: 61 lines, at most 60", idle));
  EXPECT_THAT(check_budgets({{"core/b.cpp", function("add_b", 61)}}, longer),
              ElementsAre("core/b.cpp:1: add_b: 61 lines, at most 60", idle));
}

TEST(Budgets, OfLinesCountLetters) {
  std::string line;
  for (int i = 0; i < kMaxColumns; ++i) line += "é";
  EXPECT_THAT(check_budgets({{"core/a.cpp", "\n" + line + "\n"}}, {}), IsEmpty());
  EXPECT_THAT(check_budgets({{"core/a.cpp", "\n" + line + "a\n"}}, {}),
              ElementsAre("core/a.cpp:2: 121 columns, at most 120"));
}

TEST(Budgets, LinesByRoomHaveTheLargestFirst) {
  EXPECT_THAT(lines_by_room({{"core/a.cpp", lines(2)}, {"core/b/c.h", lines(1)}, {"tests/d.cpp", lines(9)}}),
              ElementsAre("tests 9", "core 3"));
}

}  // namespace
}  // namespace megalith::style
