#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/report/report_page.h"
#include "core/base/text/units.h"
#include "core/reports/page.h"
#include "core/reports/series.h"
#include "tests/support/matchers.h"
#include "tests/support/rendered_page.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

using Json = nlohmann::ordered_json;

std::string page_with(const Json& blocks) {
  return page_of({{"title", "T"}, {"origin", Json::array()}, {"tiles", Json::array()}, {"blocks", blocks}});
}

using ReportScript = test::ScriptTest;
using Report = ReportScript;

TEST_F(ReportScript, TicksAreOneTwoOrFiveTimesAPowerOfTen) {
  const std::string page = page_with(Json::array());
  const auto ticks = [&](const char* arguments) {
    return test::evaluated(page, fmt::format("JSON.stringify(ticks({}))", arguments));
  };
  EXPECT_EQ(ticks("0, 10, 5"), "[0,2,4,6,8,10]");
  EXPECT_EQ(ticks("-1, 1, 4"), "[-1,-0.5,0,0.5,1]");
  EXPECT_EQ(ticks("1, 1000, 5"), "[200,400,600,800,1000]");
  EXPECT_EQ(ticks("3, 3, 5"), "[3]");
  EXPECT_EQ(ticks("0, NaN, 5"), "[0]");
  const std::string counts = "[1e-300, 1e-5, 0.7, 123, 9.9e17, 1e300].map(high => ticks(0, high, 5).length)";
  EXPECT_EQ(test::evaluated(page, counts + ".every(count => count >= 3 && count <= 9)"), "true");
}

TEST_F(ReportScript, NumbersAreShort) {
  EXPECT_EQ(test::evaluated(page_with(Json::array()), "[0, 0.0003, 1e-6, 9999, 12500, -3e6, 1e18].map(short).join()"),
            "0,0.0003,1e-6,9999,12.5k,-3M,1e+18");
}

TEST(ChartPoints, ThinningKeepsExtremesAndGaps) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 10000; ++i) points.push_back({static_cast<double>(i), 1.0});
  points[4321].y = 50;
  points[7000].y = -50;
  points[9000].y.reset();
  const std::vector<ChartPoint> thin = thinned(points, 100);
  EXPECT_LE(thin.size(), 300u);
  double low = 0;
  double high = 0;
  int gaps = 0;
  double last = -1;
  for (const ChartPoint& point : thin) {
    EXPECT_GT(point.x, last);
    last = point.x;
    gaps += point.y ? 0 : 1;
    low = std::min(low, point.y.value_or(0));
    high = std::max(high, point.y.value_or(0));
  }
  EXPECT_EQ(high, 50);
  EXPECT_EQ(low, -50);
  EXPECT_EQ(gaps, 1);
}

TEST(ChartPoints, SmoothingIsAMedianWithoutLag) {
  std::vector<ChartPoint> line;
  for (int i = 0; i < 50; ++i) line.push_back({static_cast<double>(i), 2.0 * i});
  line[20].y = 1e9;
  line[30].y.reset();
  const std::vector<ChartPoint> smooth = smoothed(line, 9);
  ASSERT_EQ(smooth.size(), 49u);
  EXPECT_EQ(*smooth[0].y, 0);
  EXPECT_EQ(*smooth[10].y, 20);
  EXPECT_LE(*smooth[20].y, 2.0 * 25);
}

// A chart of one line; `points` as JSON.
std::string drawn(const Json& points, bool log = false) {
  const Json line = {{"name", "s"}, {"color", 0}, {"mark", "line"}, {"points", points}};
  const Json chart = {{"kind", "lines"},
                      {"title", "T"},
                      {"unit", ""},
                      {"wide", false},
                      {"zero", !log},
                      {"log", log},
                      {"crosses", Json::array()},
                      {"series", Json::array({line})}};
  return test::rendered(page_with(Json::array({chart})));
}

TEST_F(ReportScript, BreaksTheLineAtGapsAndDrawsLonePoints) {
  const std::string svg = drawn(Json::parse("[[1, 1], [2, 2], [3, null], [4, 1], [5, null]]"));
  EXPECT_EQ(occurrences(svg, "M"), 2u);
  EXPECT_EQ(occurrences(svg, "h0"), 1u);
}

TEST_F(ReportScript, SurvivesNoPointsEqualPointsAndLogarithms) {
  for (const bool log : {false, true}) {
    for (const char* points :
         {"[]", "[[1, 3]]", "[[1, 0], [2, 0]]", "[[1, -1], [2, 1]]", "[[1, 1e-30], [2, 1e30]]", "[[7, null]]"}) {
      const std::string svg = drawn(Json::parse(points), log);
      EXPECT_THAT(svg, HasSubstr("<svg"));
      EXPECT_THAT(svg, Not(HasSubstr("NaN"))) << points;
      EXPECT_THAT(svg, Not(HasSubstr("Infinity"))) << points;
    }
  }
}

TEST(ReportBytes, AreShort) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{3} << 40), "3.0 TiB");
}

MetricsRun small_run() {
  MetricsRun run{.path = "runs/a<b>.jsonl", .version = "0.1.0", .commit = "abc"};
  for (int i = 1; i <= 100; ++i) {
    run.records.push_back({.iteration = i,
                           .consumed_samples = 8 * i,
                           .lm_loss = 5.0f / static_cast<float>(i),
                           .grad_norm = 1,
                           .learning_rate = 1e-3,
                           .tokens_per_second = 1000,
                           .tflops_per_device = 0.5,
                           .step_ms = 20,
                           .memory_peak_bytes = 3 << 20});
  }
  run.records[49].validation_loss = 0.25;
  run.records[99].validation_loss = 0.5;
  run.records[59].skipped = true;
  run.memory_bytes = {{"parameters", 1 << 20}, {"optimizer", 2 << 20}, {"other", 0}};
  run.config = {{"num-layers", "4"}, {"data-path", "[\"<x>\"]"}};
  return run;
}

TEST_F(Report, ShowsChartsFiguresMemoryAndConfiguration) {
  const std::string page = test::rendered(report_page({small_run()}));
  EXPECT_EQ(occurrences(page, "<figcaption>"), 6u);
  EXPECT_THAT(page, HasSubstr("<b>0.2500</b><span>best validation loss</span>"));
  EXPECT_THAT(page, HasSubstr("<b>100</b><span>steps</span>"));
  EXPECT_THAT(page, HasSubstr("<b>3.0 MiB</b><span>memory peak, rank 0</span>"));
  EXPECT_THAT(page, HasSubstr("step 60 skipped"));
  EXPECT_THAT(page, HasSubstr("validation, step 50: 0.2500"));
  EXPECT_THAT(page, HasSubstr("optimizer</td><td class=\"n\">2.0 MiB</td><td class=\"n\">66.7 %"));
  EXPECT_THAT(page, HasSubstr("<code>num-layers</code><code>4</code>"));
  EXPECT_THAT(page, HasSubstr("megalith 0.1.0 (abc)"));
}

TEST_F(Report, KindsOfOneCategoryShareAColour) {
  MetricsRun run = small_run();
  run.memory_bytes = {{"parameters", 10}, {"activations act", 20}, {"other", 5}, {"activations fc1", 30}};
  const std::string page = test::rendered(report_page({run}));
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b1\" style=\"opacity:1.00\"></i>activations act"));
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b1\" style=\"opacity:0.85\"></i>activations fc1"));
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b2\" style=\"opacity:1.00\"></i>other"));
}

TEST_F(Report, ShowsActivationsOnTheHost) {
  MetricsRun run = small_run();
  EXPECT_THAT(test::rendered(report_page({run})), Not(HasSubstr("Activations on the host")));
  for (StepMetrics& step : run.records)
    step.offload = {.sums = {.bytes_out = 100, .host_bytes = 5 << 20, .saving_bytes = 4 << 20, .saved_bytes = 3 << 20}};
  std::string page = test::rendered(report_page({run}));
  EXPECT_THAT(page, HasSubstr("<td class=\"n\">4.0 MiB</td><td class=\"n\">3.0 MiB</td><td class=\"n\">0.7500</td>"));
  EXPECT_THAT(page, HasSubstr("Moved to the host and back"));
  EXPECT_THAT(page, Not(HasSubstr("Compute waits for copies")));  // none was timed
  EXPECT_THAT(page, Not(HasSubstr("stage 0")));
  run.records[2].offload->stages = {{.wait_out = 0.002, .saving_bytes = 2 << 20, .saved_bytes = 1 << 20},
                                    {.saving_bytes = 4 << 20, .saved_bytes = 4 << 20, .saved_driver_bytes = 2 << 20}};
  page = test::rendered(report_page({run}));
  EXPECT_THAT(page, HasSubstr("stage 0</td><td class=\"n\">2.0 MiB</td><td class=\"n\">1.0 MiB</td><td "
                              "class=\"n\">0.5000</td><td class=\"n\">n/a</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"n\">1.0000</td><td class=\"n\">2.0 MiB</td><td class=\"n\">0.5000</td>"));
  MetricsRun other = small_run();
  other.path = "b.jsonl";
  page = test::rendered(report_page({run, other}));
  EXPECT_THAT(page, HasSubstr("Compute waits for copies"));
  EXPECT_THAT(page, HasSubstr("<td>a&lt;b&gt;.jsonl</td>"));
}

TEST_F(Report, EscapesWhatFilesSay) {
  const std::string page = test::rendered(report_page({small_run()}));
  EXPECT_THAT(page, HasSubstr("runs/a&lt;b&gt;.jsonl"));
  EXPECT_THAT(page, HasSubstr("[&quot;&lt;x&gt;&quot;]"));
  EXPECT_THAT(page, Not(HasSubstr("<b>.jsonl")));
}

TEST_F(Report, SeparatesSeveralRuns) {
  MetricsRun other = small_run();
  other.path = "b.jsonl";
  const std::string page = test::rendered(report_page({small_run(), other}));
  EXPECT_THAT(page, HasSubstr("b.jsonl training"));
  EXPECT_THAT(page, HasSubstr("a&lt;b&gt;.jsonl validation"));
  EXPECT_EQ(occurrences(page, "<tr><td>") - occurrences(page, "<tr><td><i"), 2u);
}

TEST(ReportPage, NeedsNoNetwork) {
  const std::string page = report_page({small_run()});
  for (const char* what : {"http", "src=", "href=", "@import", "url(", "fetch(", "XMLHttp"})
    EXPECT_THAT(page, Not(HasSubstr(what)));
}

// What a file says cannot end the element that holds it.
TEST(ReportPage, DataIsJsonWithoutTags) {
  MetricsRun run = small_run();
  run.path = "</script><script>alert(1)</script>\xff";
  const std::string page = report_page({run});
  const std::string begin = "id=\"data\">";
  const std::size_t data = page.find(begin) + begin.size(), end = page.find('<', data);
  EXPECT_EQ(page.substr(end, 9), "</script>");
  const Json json = Json::parse(page.substr(data, end - data));
  EXPECT_THAT(json["origin"][0].get<std::string>(), testing::StartsWith("</script><script>alert(1)</script>"));
  EXPECT_EQ(json["blocks"][0]["figures"].size(), 5u);
  EXPECT_EQ(occurrences(page, "<script"), 2u);
}

class ReportFile : public test::InFolder {};

TEST_F(ReportFile, IsWrittenWhole) {
  write_page("r.html", "page");
  EXPECT_EQ(test::read_file("r.html"), "page");
  EXPECT_FALSE(std::filesystem::exists("r.html.tmp"));
  try {
    write_page("none/r.html", "page");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFileIo);
    EXPECT_STREQ(
        error.what(),
        "--output: cannot create none/r.html: No such file or directory (ENOENT); check the path and its permissions");
  }
}

}  // namespace
}  // namespace megalith
