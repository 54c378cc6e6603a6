// Drawing of an HTML page's script, by node; tests that need node are skipped without it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/test_folder.h"

namespace megalith::test {

inline bool has_node() { return std::system("node --version > /dev/null 2>&1") == 0; }

class ScriptTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_node()) GTEST_SKIP() << "no node";
  }
};

// `expression` is JavaScript, evaluated after the page's script, and becomes a text.
inline std::string evaluated(const std::string& page, const std::string& expression) {
  const TestFolder folder;
  write_bytes(folder / "page.html", page);
  write_bytes(folder / "run.js", R"(
const page = require("fs").readFileSync(process.argv[2], "utf8");
const [, data, script] = page.match(/id="data">(.*)<\/script>\s*<script>(.*)<\/script>/s);
const main = {innerHTML: ""};
globalThis.document = {getElementById: () => ({textContent: data}), querySelector: () => main};
process.stdout.write(String(new Function("main", script + "\nreturn " + process.argv[3])(main)));
)");
  write_bytes(folder / "expression", expression);
  const std::string command =
      fmt::format("cd '{}' && node run.js page.html \"$(cat expression)\" > out", folder.path());
  EXPECT_EQ(std::system(command.c_str()), 0) << expression;
  return read_bytes(folder / "out");
}

// The page's content.
inline std::string rendered(const std::string& page) { return evaluated(page, "main.innerHTML"); }

}  // namespace megalith::test
