// plan --timeline: the printed actions over time, and the pictures of docs/img.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "apps/plan/plan_timeline.h"
#include "apps/summary/format_actions.h"
#include "tests/support/test_folder.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

const std::string kSource = MEGALITH_SOURCE_DIR, kRates = kSource + "/configs/rates/h200.toml";
constexpr const char* kUpdate = "MEGALITH_UPDATE_DOCS=1 unit_plan --gtest_filter='DocsPictures.*'";

std::size_t number_of(const std::string& svg, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++count;
  return count;
}

struct Drawn {
  Options options;
  TimelinePicture picture;

  explicit Drawn(const std::string& flags)
      : options(complete(words(flags + " --device cuda --rates " + kRates), 4)),
        picture(plan_timeline(options, 4, read_rates(kRates))) {}
  const std::string& group_of(const TimelineBox& box) const { return picture.lanes[box.lane].group; }
};

const std::string kStep = "--config " + kSource + "/docs/img/step.toml";
const std::string kPipeline = "--config " + kSource + "/docs/img/pipeline.toml --pipeline-schedule ";

class PlanTimeline : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, PlanTimeline,
    testing::Values(kStep, kPipeline + "1f1b", kPipeline + "zb-v",
                    kPipeline + "interleaved --num-virtual-stages-per-pipeline-rank 2",
                    kStep + " --overlap-grad-reduce --overlap-param-gather --data-parallel-sharding-strategy optim"));

TEST_P(PlanTimeline, HasABoxForEachPrintedAction) {
  const Drawn drawn(GetParam());
  std::map<std::string, std::set<std::string>> titles;
  for (const TimelineBox& box : drawn.picture.boxes) titles[drawn.group_of(box)].insert(box.title);
  std::istringstream printed(format_actions(drawn.options, run_config(drawn.options, 4)));
  std::map<std::string, std::set<std::string>> lines;
  std::string stage;
  for (std::string line; std::getline(printed, line);) {
    if (line.starts_with("stage ")) stage = line;
    const std::string number = line.substr(0, 5);
    if (line.substr(5, 2) == "  " && number.find_first_not_of(" 0123456789") == std::string::npos && number != "     ")
      lines[stage].insert(line.substr(line.find_first_not_of(' ')));
  }
  ASSERT_EQ(lines.size(), titles.size());
  auto of_lane = titles.begin();
  for (const auto& [name, of_stage] : lines) {
    EXPECT_GT(of_stage.size(), 20u);
    EXPECT_EQ(of_stage, (of_lane++)->second) << name;
  }
}

TEST_P(PlanTimeline, NoBoxOverlapsTheNextOfItsLane) {
  const Drawn drawn(GetParam());
  std::map<std::size_t, double> ends;
  for (const TimelineBox& box : drawn.picture.boxes) {
    EXPECT_LE(box.start, box.end) << box.title;
    EXPECT_LE(ends.try_emplace(box.lane, box.start).first->second, box.start) << box.title;
    ends[box.lane] = box.end;
  }
  const std::string svg = draw_timeline(drawn.picture);
  EXPECT_EQ(number_of(svg, "<title>"), drawn.picture.boxes.size());
  EXPECT_EQ(svg, draw_timeline(Drawn(GetParam()).picture)) << "the same bytes again";
}

TEST_P(PlanTimeline, FramesHoldTheActionsOfGraphs) {
  const Drawn drawn(GetParam());
  std::map<std::pair<std::size_t, int>, std::set<std::string>> graphs;  // by lane and frame
  for (const TimelineBox& box : drawn.picture.boxes) {
    const std::size_t at = box.title.find(" graph ");
    const bool is_compute = drawn.picture.lanes[box.lane].is_tall;
    EXPECT_EQ(box.frame >= 0, is_compute && at != std::string::npos) << box.title;
    if (box.frame >= 0) graphs[{box.lane, box.frame}].insert(box.title.substr(at));
  }
  for (const auto& [frame, names] : graphs) EXPECT_EQ(names.size(), 1u);
  const std::size_t legend = graphs.empty() ? 0 : 1;
  EXPECT_EQ(number_of(draw_timeline(drawn.picture), "class=\"f\""), graphs.size() + legend);
  EXPECT_EQ(graphs.empty(), GetParam().find("step.toml") == std::string::npos);
}

// What a stage computes begins when the message that it reads has left the stage before.
TEST(PlanTimelineOfStages, MessagesDelayTheNextStage) {
  const Drawn drawn(kPipeline + "1f1b");
  std::map<std::pair<std::string, std::string>, std::pair<double, double>> forwards;  // by stage and microbatch
  for (const TimelineBox& box : drawn.picture.boxes) {
    if (box.kind != BoxKind::kForward) continue;
    auto [found, is_first] = forwards.try_emplace({drawn.group_of(box), box.label}, box.start, box.end);
    found->second.second = box.end;
  }
  ASSERT_EQ(forwards.size(), 4u * 8);
  for (int stage = 1; stage < 4; ++stage) {
    for (int microbatch = 0; microbatch < 8; ++microbatch) {
      const auto at = [&](int s) { return forwards.at({fmt::format("stage {}", s), fmt::to_string(microbatch)}); };
      EXPECT_GT(at(stage).first, at(stage - 1).second);
    }
  }
}

// The commands of docs/timelines.md write the committed pictures.
TEST(DocsPictures, AreWhatTheirCommandsWrite) {
  const TestFolder scratch;
  std::istringstream page(read_bytes(kSource + "/docs/timelines.md"));
  int pictures = 0;
  const std::string flag = " --timeline ";
  for (std::string line; std::getline(page, line);) {
    for (std::string next; line.ends_with('\\') && std::getline(page, next);) line.replace(line.size() - 1, 1, next);
    const std::size_t at = line.find(flag);
    if (!line.starts_with("$bin/plan ") || at == std::string::npos) continue;
    ++pictures;
    const std::string committed = kSource + "/" + line.substr(at + flag.size()), drawn = scratch.path("drawn.svg");
    const std::string command = fmt::format("cd '{}' && '{}/{}{}{}' > '{}'", kSource, MEGALITH_BIN_DIR,
                                            "plan'" + line.substr(9, at - 9), flag + "'", drawn, scratch.path("out"));
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const std::string now = read_bytes(drawn);
    if (std::getenv("MEGALITH_UPDATE_DOCS") != nullptr) std::ofstream(committed) << now;
    EXPECT_TRUE(read_bytes(committed) == now) << committed << " is not what its command draws: run " << kUpdate;
  }
  EXPECT_EQ(pictures, 7);
}

}  // namespace
}  // namespace megalith::test
