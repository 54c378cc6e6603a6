// The commands that pages mark with `<!-- run -->`: they end with exit code 0 and print what the page shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <ostream>

#include "tests/distributed/e2e/pages.h"
#include "tests/distributed/e2e/program.h"

namespace megalith::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
namespace pages = std::filesystem;

// --- The form of a page ---

TEST(DocsMatcher, CommandsAndOutputsAreThoseOfMarkedBlocks) {
  const std::vector<PageCommand> commands = commands_of_page(
      "# Title\n```sh\nrm -rf none\n```\n<!-- run -->\n```sh\necho a\necho b\n```\nThis prints:\n\n"
      "<!-- output -->\n```text\na\n...\n```\n<!-- run -->\n```sh\ntrue\n```\n```text\nno output\n```\n");
  ASSERT_THAT(commands, SizeIs(2));
  EXPECT_EQ(commands[0].line, 5);
  EXPECT_EQ(commands[0].script, "echo a\necho b\n");
  EXPECT_THAT(commands[0].expected, ElementsAre("a", "..."));
  EXPECT_EQ(commands[1].script, "true\n");
  EXPECT_THAT(commands[1].expected, IsEmpty());
}

TEST(DocsMatcher, AMarkWithoutItsBlockIsAnErrorWithItsLine) {
  const auto error = [](const std::string& markdown) -> std::string {
    try {
      commands_of_page(markdown);
    } catch (const std::runtime_error& thrown) {
      return thrown.what();
    }
    return "none";
  };
  EXPECT_EQ(error("<!-- run -->\n\n```sh\n"), "line 2: expected ```sh below the mark");
  EXPECT_EQ(error("<!-- run -->\n```text\n"), "line 2: expected ```sh below the mark");
  EXPECT_EQ(error("text\n<!-- output -->\n```text\n```\n"), "line 2: expected a command ahead of the output");
  EXPECT_EQ(error("<!-- run -->\n```sh\ntrue\n"), "line 4: expected the end of the block");
  const std::string run = "<!-- run -->\n```sh\ntrue\n```\n", output = "<!-- output -->\n```text\na\n```\n";
  EXPECT_EQ(error(run + output), "none");
  EXPECT_EQ(error(run + output + output), "line 9: expected a command ahead of the output");
}

TEST(DocsMatcher, DotsMatchAnyTextWithinALine) {
  EXPECT_TRUE(matches_line("step ... of 3", "step 1 of 3"));
  EXPECT_TRUE(matches_line("...", ""));
  EXPECT_TRUE(matches_line("a ... c ...", "a b c d"));
  EXPECT_TRUE(matches_line("a...b...b", "abab"));
  EXPECT_FALSE(matches_line("step ... of 3", "step 1 of 30"));
  EXPECT_FALSE(matches_line("step 1", "step 1 of 3"));
  EXPECT_FALSE(matches_line("...b", "a"));
  EXPECT_FALSE(matches_line("a.b", "acb"));  // no regular expression
}

TEST(DocsMatcher, AMissingLineIsReported) {
  EXPECT_EQ(missing_line({"one", "three"}, "one\ntwo\nthree\n"), "");
  EXPECT_EQ(missing_line({"one", "four"}, "one\ntwo\nthree\n"), "four");
  EXPECT_EQ(missing_line({"on"}, "one\n"), "on");
  EXPECT_EQ(missing_line({"one", "one"}, "one\n"), "one");
  EXPECT_EQ(missing_line({"one"}, ""), "one");
}

TEST(DocsMatcher, TheOrderOfLinesCounts) {
  EXPECT_EQ(missing_line({"three", "one"}, "one\ntwo\nthree\n"), "one");
  EXPECT_EQ(missing_line({"...", "three", "...", "one"}, "one\ntwo\nthree\n"), "one");
}

TEST(DocsMatcher, ALineOfDotsAndSpacesAtTheEndMatchAnything) {
  EXPECT_EQ(missing_line({"...", "one ", "...", "", "three", "..."}, "zero\none\ntwo\nthree  \nfour"), "");
  EXPECT_EQ(missing_line({"..."}, ""), "");
}

// --- The pages ---

// A page by its path below the repository.
struct Page {
  std::string path;
};

void PrintTo(const Page& page, std::ostream* out) { *out << page.path; }

std::vector<Page> pages_with_commands() {
  const pages::path root = MEGALITH_SOURCE_DIR;
  std::vector<Page> found;
  const auto add = [&](const pages::path& file) {
    const std::string text = read_bytes(file.string());
    if (text.find("<!-- run") != std::string::npos) found.push_back({file.lexically_relative(root).string()});
  };
  add(root / "README.md");
  for (const auto& entry : pages::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") add(entry.path());
  }
  std::sort(found.begin(), found.end(), [](const Page& a, const Page& b) { return a.path < b.path; });
  return found;
}

std::string output_name(std::size_t block) { return "output." + std::to_string(block); }

// One shell for all blocks; each block's output goes to a file. Ranks may exceed cores, and no GPU is visible.
std::string script_of(const std::vector<PageCommand>& commands, const Folder& folder) {
  const std::string mpiexec = mpi_command(1, {}).front();
  std::string script = "set -euo pipefail\nbin=" MEGALITH_BIN_DIR "\nsrc=" MEGALITH_SOURCE_DIR "\n";
  script += "export CUDA_VISIBLE_DEVICES=\n";
  script += "export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none\n";
  if (mpiexec.find('/') != std::string::npos) {
    script += "PATH=" + pages::path(mpiexec).parent_path().string() + ":$PATH\n";
  }
  script += "mkdir page\ncd page\n";
  for (std::size_t i = 0; i < commands.size(); ++i) {
    script += "exec >" + folder.path(output_name(i)) + " 2>&1\n" + commands[i].script;
  }
  return script;
}

class Docs : public testing::TestWithParam<Page> {};

TEST(DocsPages, AreFoundByTheirMarks) { EXPECT_GE(pages_with_commands().size(), 25u); }

TEST_P(Docs, CommandsOfPagesRun) {
  const Folder folder;
  const std::vector<PageCommand> commands = commands_of_page(read_bytes(MEGALITH_SOURCE_DIR "/" + GetParam().path));
  ASSERT_FALSE(commands.empty()) << "a mark is exactly <!-- run -->";
#ifndef MEGALITH_EXIT_CODES_SURVIVE
  const auto uses_mpirun = [](const PageCommand& block) { return block.script.find("mpirun") != std::string::npos; };
  if (std::any_of(commands.begin(), commands.end(), uses_mpirun)) GTEST_SKIP() << "needs Open MPI's mpirun";
#endif
  folder.write("script", script_of(commands, folder));
  const Outcome outcome = run({"/bin/bash", folder.path("script")}, folder);
  std::size_t last = 0;
  while (last + 1 < commands.size() && pages::exists(folder.path(output_name(last + 1)))) ++last;
  EXPECT_EQ(outcome.code, 0) << outcome.err << GetParam().path << ", line " << commands[last].line << ", printed:\n"
                             << folder.read(output_name(last));
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const std::string output = folder.read(output_name(i));
    EXPECT_EQ(missing_line(commands[i].expected, output), "")
        << GetParam().path << ", line " << commands[i].line << ", printed:\n"
        << output;
  }
}

std::string case_name(const testing::TestParamInfo<Page>& page) {
  std::string name = page.param.path.substr(0, page.param.path.size() - 3);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Pages, Docs, testing::ValuesIn(pages_with_commands()), case_name);

}  // namespace
}  // namespace megalith::test
