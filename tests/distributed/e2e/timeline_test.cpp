// report TRACE.json --output FILE.svg: the picture of a traced step against the list that plan prints.
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

const Words kLayout = {"--pipeline-model-parallel-size", "2", "--overlap-grad-reduce"};

struct Box {
  double x, y, width;
  std::string title;
};

std::vector<Box> boxes_of(const std::string& svg) {
  const std::regex box(
      "<rect class=\"[kd][0-9]+\" x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" "
      "height=\"[0-9.]+\"><title>(.*)\\n");
  std::vector<Box> boxes;
  for (auto found = std::sregex_iterator(svg.begin(), svg.end(), box); found != std::sregex_iterator(); ++found)
    boxes.push_back({std::stod((*found)[1]), std::stod((*found)[2]), std::stod((*found)[3]), (*found)[4]});
  return boxes;
}

// The names under which a trace has the printed actions, and how many of each.
std::map<std::string, int> traced_names(const std::string& printed) {
  const std::regex verb("([a-z_]+) chunk [0-9]+ (microbatch [0-9]+) segment [0-9]+ column [0-9]+ \\((.*)\\).*");
  const std::regex line(" *[0-9]+  (.*)");
  std::map<std::string, int> names;
  std::istringstream lines(printed);
  std::smatch found;
  for (std::string text; std::getline(lines, text);) {
    if (!std::regex_match(text, found, line)) continue;
    const std::string action = found[1];
    ++names[std::regex_match(action, found, verb) ? found.format("$3 $1 $2") : action];
  }
  return names;
}

TEST(TimelineOfATrace, HasABoxForEachActionAndNoneOverlaps) {
  const Folder folder;
  const Words traced = {"--trace", "trace.json", "--profile-step-start", "3", "--profile-step-end", "5"};
  run_ok(program_on(2, "train", tiny_mock() + kLayout + traced), folder);
  run_ok(program("report", {"trace.json", "--output", "step.svg"}), folder);
  const std::string svg = folder.read("step.svg");
  EXPECT_THAT(svg, HasSubstr("A traced training step: step 4 of trace.json"));
  EXPECT_THAT(svg, HasSubstr(">rank 1</text>"));
  std::map<std::string, int> drawn;
  std::map<double, double> ends;  // by lane
  for (const Box& box : boxes_of(svg)) {
    ++drawn[box.title];
    EXPECT_LE(ends.try_emplace(box.y, box.x).first->second, box.x + 0.05) << box.title;
    ends[box.y] = box.x + box.width;
  }
  const Words model = words("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16");
  const Words list = {"--micro-batch-size", "2", "--global-batch-size", "8", "--world-size", "2", "--print-actions"};
  const Outcome plan = run_ok(program("plan", model + kLayout + list), folder);
  const std::map<std::string, int> printed = traced_names(plan.out);
  EXPECT_GT(printed.size(), 40u);
  for (const auto& [name, count] : printed) {
    const bool has_channel = name.starts_with("send ") || name.starts_with("post_receive ");  // a lane of its own, too
    EXPECT_EQ(drawn[name], has_channel ? 2 * count : count) << name;
  }
}

TEST(TimelineOfATrace, OtherFilesAreRejected) {
  const Folder folder;
  folder.write("metrics.jsonl", "{\"iteration\": 1}\n{\"iteration\": 2}\n");
  folder.write("empty.json", "{\"traceEvents\": []}");
  folder.write("odd.json", "{\"traceEvents\": [{\"ph\": \"X\", \"pid\": 0, \"tid\": \"one\"}]}");
  const auto draws = [](const Words& files) { return program("report", files + Words{"--output", "step.svg"}); };
  expect_error(folder, draws({"metrics.jsonl"}), 4, HasSubstr("metrics.jsonl: "));
  expect_error(folder, draws({"empty.json"}), 4, HasSubstr("empty.json: expected a step of train --trace, got none"));
  expect_error(folder, draws({"odd.json"}), 4, HasSubstr("odd.json: expected events with pid, tid, name"));
  expect_error(folder, draws({"empty.json", "odd.json"}), 2, HasSubstr("--output FILE.svg: expected one trace, got 2"));
}

}  // namespace
}  // namespace megalith::test
