#include "parallel/pipeline_parallel/schedule_block.h"

#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/plan/plan_page.h"
#include "core/reports/page.h"
#include "tests/support/matchers.h"
#include "tests/support/rendered_page.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Fault of a text as XML without comments, declarations or processing instructions; empty: none.
std::string xml_fault(const std::string& text) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      const std::string name = text.substr(at, end - at + 1);
      if (name != "&amp;" && name != "&lt;" && name != "&gt;" && name != "&quot;") return "entity " + name;
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    bool quoted = false;
    std::size_t end = at + 1;
    for (; end < text.size() && (quoted || text[end] != '>'); ++end) {
      if (text[end] == '"') quoted = !quoted;
      if (text[end] == '<') return "< in a tag";
    }
    if (end == text.size()) return "a tag without end";
    const std::string tag = text.substr(at + 1, end - at - 1);
    std::string name;
    for (const char c : tag.substr(tag.starts_with("/") ? 1 : 0)) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) break;
      name += c;
    }
    if (name.empty()) return "a tag without name: " + tag;
    if (tag.starts_with("/")) {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

// Drawing of a schedule on a page.
std::string drawn(const Schedule& schedule, const Simulation& simulation) {
  return rendered(page_of({{"title", ""},
                           {"origin", nlohmann::ordered_json::array()},
                           {"tiles", nlohmann::ordered_json::array()},
                           {"blocks", nlohmann::ordered_json::array({schedule_block(schedule, simulation)})}}));
}

using ScheduleChart = ScriptTest;
using PlanPage = ScheduleChart;

TEST_F(ScheduleChart, HasABoxForEachVerb) {
  for (const auto& [kind, chunks, microbatches] : {std::tuple{ScheduleKind::k1F1B, 1, 1},
                                                   {ScheduleKind::k1F1B, 1, 7},
                                                   {ScheduleKind::kInterleaved, 2, 8},
                                                   {ScheduleKind::kZbV, 2, 8},
                                                   {ScheduleKind::kGpipe, 1, 3}}) {
    const Schedule schedule = make_schedule(kind, 4, chunks, microbatches);
    const std::string svg = drawn(schedule, simulate(schedule, {}));
    SCOPED_TRACE(name_of(kind));
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_EQ(occurrences(svg, "class=\"box "), static_cast<std::size_t>(3 * 4 * chunks * microbatches));
    EXPECT_EQ(occurrences(svg, "class=\"bubble\""), 4u);
    EXPECT_EQ(occurrences(svg, "<svg "), 1u);
    EXPECT_THAT(svg, HasSubstr(">stage 3<"));
  }
}

TEST_F(ScheduleChart, SaysTheBubble) {
  // 2 stages, 1 microbatch: each of them waits for half of the time.
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 1);
  EXPECT_THAT(drawn(schedule, simulate(schedule, {})), HasSubstr("bubble 50.0 %"));
  const Schedule alone = make_schedule(ScheduleKind::k1F1B, 1, 1, 3);
  EXPECT_THAT(drawn(alone, simulate(alone, {})), HasSubstr("bubble 0.0 %"));
}

TEST_F(ScheduleChart, LeavesOutWhatTakesNoTime) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 3);
  const std::string svg =
      drawn(schedule, simulate(schedule, {.parts = {{.forward = 1, .backward_data = 2, .backward_weight = 0}}}));
  EXPECT_EQ(occurrences(svg, "class=\"box "), 12u);
  const std::string nothing =
      drawn(schedule, simulate(schedule, {.parts = {{.forward = 0, .backward_data = 0, .backward_weight = 0}}}));
  EXPECT_EQ(occurrences(nothing, "class=\"box "), 0u);
  EXPECT_EQ(xml_fault(nothing), "");
  EXPECT_THAT(nothing, Not(HasSubstr("nan")));
}

TEST_F(PlanPage, HasThePictureOrPartOfIt) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  const Options options = complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2"}, 4);
  const Forecast forecast = make_forecast(options, 4, {.rates = &rates});
  Rates named = rates;
  named.device = "<a device>";
  const std::string page = rendered(plan_page(options, forecast, named));
  EXPECT_EQ(occurrences(page, "class=\"box "), 3u * 2 * 8);
  EXPECT_THAT(page, HasSubstr("&lt;a device&gt;"));
  EXPECT_THAT(page, HasSubstr("<h2>memory per rank of stage 1</h2>"));
  EXPECT_THAT(page, HasSubstr("<h2>communication per rank and step"));
  EXPECT_EQ(xml_fault(page), "");

  const Options many =
      complete(plan_flags() + Words{"--pipeline-model-parallel-size", "2", "--global-batch-size", "20000"}, 2);
  const std::string some =
      rendered(plan_page(many, make_forecast(many, 2, {.rates = &rates, .max_recorded = 1}), rates));
  EXPECT_LE(occurrences(some, "class=\"box "), kMaxBoxes);
  EXPECT_GT(occurrences(some, "class=\"box "), kMaxBoxes / 2);
  EXPECT_THAT(some, HasSubstr("of 20000 microbatches"));
}

}  // namespace
}  // namespace megalith::test
