#include "tests/style/pages.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

std::string times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::vector<std::string> checked(const std::map<std::string, std::string>& pages) {
  return check_pages(pages, [&](const std::string& path) {
    return pages.contains(path) || path == "core" || path == "core/a.h" || path == "docs/a.svg";
  });
}

TEST(Pages, HaveBoundedLengthAndWidth) {
  EXPECT_THAT(checked({{"README.md", times(150, times(10, "w ") + "\n")},
                       {"docs/a.md", times(249, times(120, "x") + "\n")},
                       {"docs/flags/a.md", times(200, "x") + "\n"},
                       {"core/README.md", times(400, times(130, "x") + "\n")}}),
              IsEmpty());
  EXPECT_THAT(checked({{"README.md", times(151, times(10, "w ") + "\n") + times(121, "\xC3\xA4") + "\n"},
                       {"docs/a.md", times(250, "x\n")}}),
              ElementsAre("README.md: 152 lines, at most 150", "README.md:152: 121 columns, at most 120",
                          "README.md: 1511 words, at most 1500", "docs/a.md: 250 lines, at most 249"));
}

TEST(Pages, LinksLeadToFilesAndHeadings) {
  EXPECT_THAT(checked({{"docs/a.md",
                        "# A\n## How it works\n[a](b/c.md) [b](b/c.md#the----flag) [c](#how-it-works) [d](../core)\n"
                        "![e](a.svg \"E\") [f](../core/a.h#L3) [g](https://x.y/z) [h](/core/a.h)\n[i]: b/c.md\n"
                        "`[x](y)`\n```sh\n[x](y)\n```\n"},
                       {"docs/b/c.md", "## The `--` flag!\n[up](../a.md#a)\n<img src=\"../a.svg\">\n"}}),
              IsEmpty());
  EXPECT_THAT(
      checked({{"docs/a.md", "[a](c.md)\n[b](#b) [c](../../x.md)\n[i]: d.md#e\n<img src=\"b.svg\">\n"},
               {"docs/d.md", "# D\n"}}),
      ElementsAre("docs/a.md:1: c.md leads to no file", "docs/a.md:2: #b leads to no heading of docs/a.md",
                  "docs/a.md:2: ../../x.md leads to no file", "docs/a.md:3: d.md#e leads to no heading of docs/d.md",
                  "docs/a.md:4: b.svg leads to no file"));
}

TEST(Pages, AnchorsFollowGitHub) {
  EXPECT_THAT(anchors_of("# A b_c: `--d`, [E](f.md)\n## A\n## A\n```\n# no\n```\n<a id=\"own\"></a>\n#no\n"),
              ElementsAre("a", "a-1", "a-b_c---d-e", "own"));
}

TEST(Pages, NavListsEachPageOnce) {
  const std::map<std::string, std::string> pages = {{"docs/a.md", ""}, {"docs/b/c.md", ""}, {"README.md", ""}};
  EXPECT_THAT(check_nav(pages, "site_name: x\nnav:\n  - A: a.md\n  - B:\n      - b/c.md\n"), IsEmpty());
  EXPECT_THAT(check_nav(pages, "site_name: x\nnav:\n  - A: a.md\n  - a.md\n  - d.md\n"),
              ElementsAre("mkdocs.yml: docs/a.md stands in nav twice",
                          "mkdocs.yml: nav lists docs/d.md, which is not there", "mkdocs.yml: nav lacks docs/b/c.md"));
}

}  // namespace
}  // namespace megalith::style
