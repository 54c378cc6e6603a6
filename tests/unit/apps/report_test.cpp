#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "apps/report/report_chart.h"
#include "apps/report/report_page.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(ChartTicks, AreOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_THAT(nice_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(nice_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_THAT(nice_ticks(1, 1000, 5), ElementsAre(200, 400, 600, 800, 1000));
  EXPECT_THAT(nice_ticks(3, 3, 5), ElementsAre(3));
  EXPECT_EQ(nice_ticks(0, std::nan(""), 5).size(), 1u);
  for (const double high : {1e-300, 1e-5, 0.7, 123.0, 9.9e17, 1e300}) {
    const std::size_t count = nice_ticks(0, high, 5).size();
    EXPECT_GE(count, 3u) << high;
    EXPECT_LE(count, 9u) << high;
  }
}

TEST(ChartNumbers, AreShort) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(0.0003), "0.0003");
  EXPECT_EQ(short_number(1e-6), "1e-06");
  EXPECT_EQ(short_number(9999), "9999");
  EXPECT_EQ(short_number(12500), "12.5k");
  EXPECT_EQ(short_number(-3e6), "-3M");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{3} << 40), "3.0 TiB");
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

TEST(Chart, BreaksTheLineAtGapsAndDrawsLonePoints) {
  Chart chart{.title = "T"};
  chart.series.push_back({.name = "s", .points = {{1, 1.0}, {2, 2.0}, {3, {}}, {4, 1.0}, {5, {}}}});
  const std::string svg = chart_svg(chart);
  EXPECT_EQ(occurrences(svg, "M"), 2u);
  EXPECT_EQ(occurrences(svg, "h0"), 1u);
}

TEST(Chart, SurvivesNoPointsEqualPointsAndLogarithms) {
  for (const bool log_scale : {false, true}) {
    for (const std::vector<ChartPoint>& points : std::vector<std::vector<ChartPoint>>{
             {}, {{1, 3.0}}, {{1, 0.0}, {2, 0.0}}, {{1, -1.0}, {2, 1.0}}, {{1, 1e-30}, {2, 1e30}}, {{7, {}}}}) {
      Chart chart{.title = "T", .log_scale = log_scale};
      chart.series.push_back({.name = "s", .points = points});
      const std::string svg = chart_svg(chart);
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
    }
  }
}

MetricsRun small_run() {
  MetricsRun run{.path = "runs/a<b>.jsonl", .version = "0.1.0", .commit = "abc"};
  for (int i = 1; i <= 100; ++i) {
    run.records.push_back({.iteration = i,
                           .consumed_samples = 8 * i,
                           .lm_loss = 5.0 / i,
                           .grad_norm = 1.0,
                           .validation_loss = {},
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

TEST(Report, ShowsChartsFiguresMemoryAndConfiguration) {
  const std::string page = report_page({small_run()});
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

TEST(Report, KindsOfOneCategoryShareAColour) {
  MetricsRun run = small_run();
  run.memory_bytes = {{"parameters", 10}, {"activations act", 20}, {"other", 5}, {"activations fc1", 30}};
  const std::string page = report_page({run});
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b1\" style=\"opacity:1.00\"></i>activations act"));
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b1\" style=\"opacity:0.85\"></i>activations fc1"));
  EXPECT_THAT(page, HasSubstr("<i class=\"swatch b2\" style=\"opacity:1.00\"></i>other"));
}

TEST(Report, ShowsActivationsOnTheHost) {
  MetricsRun run = small_run();
  EXPECT_THAT(report_page({run}), Not(HasSubstr("Activations on the host")));
  for (MetricsRecord& record : run.records)
    record.offload = {.bytes_out = 100, .host_bytes = 5 << 20, .saving_bytes = 4 << 20, .saved_bytes = 3 << 20};
  std::string page = report_page({run});
  EXPECT_THAT(page, HasSubstr("<td class=\"n\">4.0 MiB</td><td class=\"n\">3.0 MiB</td><td class=\"n\">0.7500</td>"));
  EXPECT_THAT(page, HasSubstr("Moved to the host and back"));
  EXPECT_THAT(page, Not(HasSubstr("Computing waited for copies")));  // none was timed
  EXPECT_THAT(page, Not(HasSubstr("stage 0")));
  run.records[2].offload->wait_ms = 2;
  run.records[2].offload->stages = {{.saving_bytes = 2 << 20, .saved_bytes = 1 << 20},
                                    {.saving_bytes = 4 << 20, .saved_bytes = 4 << 20, .saved_driver_bytes = 2 << 20}};
  page = report_page({run});
  EXPECT_THAT(page, HasSubstr("stage 0</td><td class=\"n\">2.0 MiB</td><td class=\"n\">1.0 MiB</td><td "
                              "class=\"n\">0.5000</td><td class=\"n\">n/a</td>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"n\">1.0000</td><td class=\"n\">2.0 MiB</td><td class=\"n\">0.5000</td>"));
  MetricsRun other = small_run();
  other.path = "b.jsonl";
  page = report_page({run, other});
  EXPECT_THAT(page, HasSubstr("Computing waited for copies"));
  EXPECT_THAT(page, HasSubstr("<td>a&lt;b&gt;.jsonl</td>"));
}

TEST(Report, EscapesWhatFilesSay) {
  const std::string page = report_page({small_run()});
  EXPECT_THAT(page, HasSubstr("runs/a&lt;b&gt;.jsonl"));
  EXPECT_THAT(page, HasSubstr("[&quot;&lt;x&gt;&quot;]"));
  EXPECT_THAT(page, Not(HasSubstr("<b>.jsonl")));
}

TEST(Report, NeedsNoNetwork) {
  const std::string page = report_page({small_run()});
  for (const char* what : {"http", "src=", "href=", "@import", "url(", "<script"})
    EXPECT_THAT(page, Not(HasSubstr(what)));
}

TEST(Report, TellsSeveralRunsApart) {
  MetricsRun other = small_run();
  other.path = "b.jsonl";
  const std::string page = report_page({small_run(), other});
  EXPECT_THAT(page, HasSubstr("b.jsonl training"));
  EXPECT_THAT(page, HasSubstr("a&lt;b&gt;.jsonl validation"));
  EXPECT_EQ(occurrences(page, "<tr><td>") - occurrences(page, "<tr><td><i"), 2u);
}

class ReportFile : public test::InFolder {};

TEST_F(ReportFile, IsWrittenWhole) {
  write_report("r.html", "page");
  EXPECT_EQ(test::read_file("r.html"), "page");
  EXPECT_FALSE(std::filesystem::exists("r.html.tmp"));
  try {
    write_report("none/r.html", "page");
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
