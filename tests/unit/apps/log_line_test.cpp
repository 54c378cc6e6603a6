#include <gtest/gtest.h>

#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <sstream>

#include "apps/config/logging_options.h"
#include "apps/metrics/metrics.h"
#include "core/base/log.h"
#include "core/base/machine/peak_tflops.h"
#include "core/base/text/units.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/step_metrics_support.h"

namespace megalith::test {
namespace {

StepMetrics metrics() {
  return {.iteration = 12,
          .train_iters = 100,
          .consumed_samples = 384,
          .global_batch_size = 32,
          .lm_loss = 5.123456f,
          .grad_norm = 1.2341f,
          .learning_rate = 3e-4,
          .tokens_per_second = 1234567.8,
          .tflops_per_device = 512.34,
          .step_ms = 123.44};
}

LogLine log_line() {
  LogLine line = log_line_of(metrics());
  line.ranks = 8;
  line.mfu = 0.5178;
  line.seconds_left = 3723.4;
  return line;
}

TEST(LogLine, IsMegatrons) {
  EXPECT_EQ(
      format_log_line(log_line(), "2026-01-31 12:00:00"),
      " [2026-01-31 12:00:00] iteration 12/ 100 | consumed samples: 384 | elapsed time per iteration (ms): 123.4 | "
      "throughput per GPU (TFLOP/s/GPU): 512.3 | learning rate: 3.000000E-04 | global batch size: 32 | lm loss: "
      "5.123456E+00 | grad norm: 1.234 | number of skipped iterations: 0 | number of nan iterations: 0 | tokens/s: "
      "1234568 | tokens/s/GPU: 154321 | MFU: 51.8% | ETA: 1h 02m |");
}

TEST(LogLine, SaysWhatRoutersLose) {
  StepMetrics step = metrics();
  step.load_balancing_loss = 1.25f;
  step.z_loss = 0.5f;
  EXPECT_THAT(
      format_log_line(log_line_of(step), "t"),
      HasSubstr(" lm loss: 5.123456E+00 | load_balancing_loss: 1.250000E+00 | z_loss: 5.000000E-01 | grad norm: "));
}

TEST(LogLine, OfOneRankOfUnknownPeak) {
  StepMetrics step = metrics();
  step.tokens_per_second = 12.34;
  EXPECT_THAT(format_log_line(log_line_of(step), "t"),
              EndsWith(" number of nan iterations: 0 | tokens/s: 12.3 | ETA: 0s |"));
}

TEST(LogLine, ShowsSmallThroughputAndNan) {
  StepMetrics step = metrics();
  step.tflops_per_device = 0.0394;
  step.lm_loss = std::nanf("");
  step.skipped = true;
  const std::string text = format_log_line(log_line_of(step), "t");
  EXPECT_THAT(text, HasSubstr("(ms): 123.4 | throughput per GPU (TFLOP/s/GPU): 0.039 | learning rate: "));
  EXPECT_THAT(text, HasSubstr(" lm loss: nan | "));
  EXPECT_THAT(text, HasSubstr("skipped iterations: 1 | number of nan iterations: 1 |"));
}

TEST(ShortLogLine, HasWhatPeopleLookForFirst) {
  EXPECT_EQ(
      format_short_line(log_line(), "12:00:00"),
      "12:00:00 step 12/100  loss 5.1235  norm 1.234  lr 3.00e-04  123.4 ms  154321 tok/s/GPU  MFU 51.8%  1h 02m left");
  LogLine line = log_line();
  line.device = "CPU";
  line.mfu.reset();
  EXPECT_THAT(format_short_line(line, "12:00:00"), HasSubstr("  154321 tok/s/CPU  512 TFLOP/s  1h 02m left"));
}

TEST(ShortLogLine, ShowsSkippedStepsAndNanAndTheWorstLayer) {
  StepMetrics step = metrics();
  step.skipped = true;
  step.lm_loss = std::nanf("");
  step.experts = {ExpertLoad{.layer = 3, .max = 20, .mean = 10, .dropped = 4}};
  const std::string text = format_short_line(log_line_of(step), "t");
  EXPECT_THAT(text, HasSubstr("t step 12/100  loss nan  norm 1.234  "));
  EXPECT_THAT(text, HasSubstr("  123.4 ms  skipped 1  load max/mean 2.00  dropped 4  "));
}

TEST(ShortLogLine, LeavesOutWhatDoesNotFit) {
  StepMetrics step = metrics();
  step.iteration = step.train_iters = 100'000'000;
  step.lm_loss = 1e30f;
  step.grad_norm = 123456.0f;
  step.skipped = true;
  step.experts = {ExpertLoad{.max = 20, .mean = 10, .dropped = 123456}};
  const std::string text = format_short_line(log_line_of(step), "12:00:00");
  EXPECT_LE(text.size(), 120U) << text;
  EXPECT_THAT(text, HasSubstr("  loss 1.000000E+30  norm 123456.000  lr 3.00e-04  123.4 ms  skipped 1  "));
  EXPECT_THAT(text, EndsWith("  0s left"));
}

TEST(StepLog, MessagesEraseTheProgressBar) {
  ::testing::internal::CaptureStderr();
  show_status("[==>  ]");
  log_info("a message");
  log_info("another");
  show_status("[====>]");
  end_status();
  end_status();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "\r\033[K[==>  ]\r\033[K[megalith] a message\n[megalith] another\n\r\033[K[====>]\n");
}

TEST(StepLog, PrintsMeansOfTheInterval) {
  ::testing::internal::CaptureStdout();
  {
    StepLog log({.log_interval = 3, .log_format = LogFormat::kMegatron, .log_throughput = true},
                {.ranks = 2, .peak_tflops = 10});
    for (std::int64_t i = 1; i <= 8; ++i) {
      StepMetrics metrics = step_metrics(i, 8);
      metrics.lm_loss = i == 5 ? std::nanf("") : static_cast<float>(i);
      metrics.skipped = i == 5;
      metrics.step_ms = 10.0 * static_cast<double>(i);
      metrics.tokens_per_second = 1000.0 * static_cast<double>(i);
      metrics.tflops_per_device = static_cast<double>(i);
      log.step(metrics);
    }
    log.evaluation("validation", 8, 2.0);
  }
  const std::string text = ::testing::internal::GetCapturedStdout();
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u) << text;
  EXPECT_THAT(lines[0],
              HasSubstr("iteration 1/ 8 | consumed samples: 32 | elapsed time per iteration (ms): 10.0 | throughput"));
  EXPECT_THAT(lines[1], HasSubstr("iteration 3/ 8 | consumed samples: 96 | elapsed time per iteration (ms): 25.0 |"));
  EXPECT_THAT(lines[1], HasSubstr("lm loss: 2.500000E+00 |"));
  // Of each step so many tokens that its rate is 1,000 x its number: in 50 ms of steps 2 and 3 2 x 20 + 3 x 30 = 130.
  EXPECT_THAT(lines[1], HasSubstr(" | tokens/s: 2600 | tokens/s/GPU: 1300 | MFU: 26.0% | ETA: "));
  EXPECT_THAT(lines[2], HasSubstr("iteration 6/ 8 |"));
  EXPECT_THAT(lines[2], HasSubstr("lm loss: 5.000000E+00 | grad norm: 0.100 | number of skipped iterations: 1 | number "
                                  "of nan iterations: 1 |"));
  EXPECT_THAT(lines[3], HasSubstr("iteration 8/ 8 |"));
  EXPECT_THAT(lines[3], HasSubstr("lm loss: 7.500000E+00 | grad norm: 0.100 | number of skipped iterations: 0 |"));
  EXPECT_EQ(lines[4], " validation loss at iteration 8 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 |");
}

TEST(StepLog, DrawsProgressOnlyOnATerminal) {
  int controller = -1;
  int terminal = -1;
  if (openpty(&controller, &terminal, nullptr, nullptr, nullptr) != 0)
    GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  const int stderr_before = dup(STDERR_FILENO);
  ::testing::internal::CaptureStdout();
  dup2(terminal, STDERR_FILENO);
  {
    StepLog log({.log_interval = 1}, {});
    log.step(step_metrics(1, 2));
    log.step(step_metrics(2, 2));
  }
  // The terminal hands on what was written later, and in pieces: read to the newline of the end.
  std::string drawn;
  pollfd ready{.fd = controller, .events = POLLIN, .revents = 0};
  while (!drawn.ends_with('\n') && poll(&ready, 1, 60'000) == 1) {
    std::array<char, 4096> piece{};
    const ssize_t count = read(controller, piece.data(), piece.size());
    if (count <= 0) break;
    drawn.append(piece.data(), static_cast<std::size_t>(count));
  }
  dup2(stderr_before, STDERR_FILENO);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  for (const int file : {stderr_before, controller, terminal}) close(file);
  EXPECT_THAT(drawn, HasSubstr("\r\033[K[==============="));
  EXPECT_THAT(drawn, HasSubstr("] 2/2 | loss 5.500 | 1.2 k tokens/s | 0s left"));
  EXPECT_THAT(printed, HasSubstr(" step 2/2  loss 5.5000  "));
  EXPECT_EQ(printed.find("\r"), std::string::npos);
}

TEST(StepLog, FirstLineTakesTheTimeLeftFromItsStep) {
  ::testing::internal::CaptureStdout();
  {
    StepLog log({.log_interval = 100}, {});
    StepMetrics metrics = step_metrics(1, 11);
    metrics.step_ms = 60'000;
    log.step(metrics);
    metrics.iteration = 11;
    log.step(metrics);
  }
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, HasSubstr(" step 1/11  "));
  EXPECT_THAT(text, HasSubstr("  10m 00s left\n"));
  EXPECT_THAT(text, EndsWith("  0s left\n"));
}

TEST(StepLog, TimeLeftIsByTheClock) {
  ::testing::internal::CaptureStdout();
  {
    StepLog log({.log_interval = 2}, {});
    StepMetrics metrics = step_metrics(1);
    metrics.step_ms = 60'000;
    log.step(metrics);
    metrics.iteration = 2;
    log.step(metrics);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("  0s left\n"));
}

TEST(Numbers, AreShort) {
  EXPECT_EQ(with_unit(512), "512");
  EXPECT_EQ(with_unit(12345), "12.3 k");
  EXPECT_EQ(with_unit(1.235814e9), "1.24 B");
  EXPECT_EQ(with_unit(1.5e13), "15.00 T");
  EXPECT_EQ(duration(59.4), "59s");
  EXPECT_EQ(duration(59.6), "1m 00s");
  EXPECT_EQ(duration(86399), "23h 59m");
  EXPECT_EQ(duration(90000), "1d 01h");
}

TEST(PeakRate, IsOfTheGpuThatIsNamed) {
  EXPECT_EQ(bf16_peak_tflops("NVIDIA H200"), 989);
  EXPECT_EQ(bf16_peak_tflops("NVIDIA H100 80GB HBM3"), 989);
  EXPECT_EQ(bf16_peak_tflops("NVIDIA H100 PCIe"), 756);
  EXPECT_EQ(bf16_peak_tflops("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(bf16_peak_tflops("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), 0);
  EXPECT_EQ(bf16_peak_tflops("CPU"), 0);
  Options options = train_options({"--bf16"});
  EXPECT_EQ(peak_tflops_of(options, "NVIDIA H200"), 989);
  options.logging.peak_tflops = 600;
  EXPECT_EQ(peak_tflops_of(options, "NVIDIA H200"), 600);
  EXPECT_EQ(peak_tflops_of(train_options({}), "NVIDIA H200"), 0);  // fp32 has another peak
}

TEST(Progress, ShowsBarAndTimeLeft) {
  EXPECT_EQ(
      format_progress({.iteration = 12, .train_iters = 100, .lm_loss = 5.1234f, .tokens_per_second = 12345}, 83.4),
      "[===>                          ]  12/100 | loss 5.123 | 12.3 k tokens/s | 1m 23s left");
  EXPECT_EQ(format_progress({.iteration = 100, .train_iters = 100, .lm_loss = 1, .tokens_per_second = 2.5e6}, 0),
            "[==============================] 100/100 | loss 1.000 | 2.50 M tokens/s | 0s left");
  EXPECT_THAT(format_progress({.iteration = 1, .train_iters = 100000}, 7384), HasSubstr("| 2h 03m left"));
}

}  // namespace
}  // namespace megalith::test
