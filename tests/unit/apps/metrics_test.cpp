#include "apps/metrics/metrics.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "apps/metrics/metrics_reader.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/step_metrics_support.h"

namespace megalith::test {
namespace {

using ::testing::Pair;

TEST(MetricsLine, HasEveryKeyInOneLine) {
  StepMetrics metrics = step_metrics(3);
  metrics.validation_loss = 2.25;
  metrics.load_balancing_loss = 1.5f;
  metrics.z_loss = 0.25f;
  metrics.memory_bytes = {{"parameters", 1024}, {"main parameters", 2048}};
  EXPECT_EQ(
      to_json_line(metrics, "{\"megalith\": \"0\"}"),
      R"({"iteration": 3, "consumed_samples": 96, "global_batch_size": 32, "lm_loss": 5.5, )"
      R"("lm_loss_hex": "0x1.6p+2", "grad_norm": 0.1, "grad_norm_hex": "0x1.99999ap-4", "learning_rate": 0.0003, )"
      R"("tokens_per_second": 1234.5, "tflops_per_device": 0.25, "step_ms": 12.5, "enqueue_ms": 0.5, )"
      R"("memory_peak_bytes": 4096, )"
      R"("skipped": false, "skipped_steps": 0, "load_balancing_loss": 1.5, "z_loss": 0.25, "validation_loss": 2.25, )"
      R"("memory_bytes": {"parameters": 1024, "main parameters": 2048}, "run": {"megalith": "0"}})");
}

TEST(MetricsLine, ReportsActivationsOnTheHost) {
  StepMetrics metrics = step_metrics(3);
  metrics.offload = {
      .sums = {
          .slots = 4, .bytes_out = 100, .bytes_back = 90, .host_bytes = 80, .saving_bytes = 70, .saved_bytes = 60}};
  const std::string untimed = R"("offload": {"slots": 4, "bytes_out": 100, "bytes_back": 90, "host_bytes": 80, )"
                              R"("saving_bytes": 70, "saved_bytes": 60)";
  EXPECT_THAT(to_json_line(metrics), HasSubstr(untimed + "}}"));
  metrics.offload->sums.saved_driver_bytes = 50;
  metrics.offload->stages = {{.slots = 4,
                              .bytes_out = 100,
                              .bytes_back = 90,
                              .copy_out = 0.0015,
                              .copy_back = 0.0025,
                              .wait_back = 0.00025,
                              .step = 0.03,
                              .saving_bytes = 40,
                              .saved_bytes = 30,
                              .saved_driver_bytes = 20},
                             {}};
  EXPECT_THAT(
      to_json_line(metrics),
      HasSubstr(untimed + R"(, "saved_driver_bytes": 50, "stages": [{"slots": 4, "bytes_out": 100, "bytes_back": 90, )"
                          R"("copy_out_ms": 1.5, "copy_back_ms": 2.5, "wait_out_ms": 0, "wait_back_ms": 0.25, )"
                          R"("step_ms": 30, "saving_bytes": 40, "saved_bytes": 30, "saved_driver_bytes": 20}, )"
                          R"({"slots": 0, )"));
}

TEST(MetricsLine, WhatIsNotFiniteIsNullAndItsHexSaysWhich) {
  StepMetrics metrics = step_metrics(1);
  metrics.lm_loss = -std::numeric_limits<float>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<float>::infinity();
  EXPECT_THAT(to_json_line(metrics),
              HasSubstr(R"("lm_loss": null, "lm_loss_hex": "nan", "grad_norm": null, "grad_norm_hex": "inf")"));
  metrics.grad_norm = -metrics.grad_norm;
  EXPECT_THAT(to_json_line(metrics), HasSubstr(R"("grad_norm_hex": "-inf")"));
}

TEST(MetricsLine, HexGivesTheFp32ValueBack) {
  for (const float value : {0.1f, 1e-45f, 3.4028235e38f, 0.0f, -0.0f, 5.123456f}) {
    StepMetrics metrics = step_metrics(1);
    metrics.lm_loss = value;
    const std::string line = to_json_line(metrics);
    const std::size_t at = line.find("lm_loss_hex\": \"") + 15;
    const float back = std::strtof(line.c_str() + at, nullptr);
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
}

class MetricsFile : public InFolder {
 protected:
  static std::vector<std::int64_t> iterations(const std::string& path) {
    std::vector<std::int64_t> out;
    for (const StepMetrics& record : read_metrics(path).records) out.push_back(record.iteration);
    return out;
  }
  static void write_steps(const std::string& path, std::int64_t resumed, std::int64_t last) {
    MetricsLog log(path, train_options({"--seed", "7"}), resumed);
    for (std::int64_t i = resumed + 1; i <= last; ++i) log.write(step_metrics(i));
  }
};

TEST_F(MetricsFile, IsReadBack) {
  {
    MetricsLog log("m.jsonl", train_options({"--seed", "7", "--data-path", "x \"y\"", "--mock-data=false"}), 0);
    StepMetrics metrics = step_metrics(1);
    metrics.validation_loss = 2.25;
    metrics.memory_bytes = {{"parameters", 1024}};
    log.write(metrics);
    metrics = step_metrics(2);
    metrics.lm_loss = std::nanf("");
    metrics.skipped = true;
    log.write(metrics);
  }
  const MetricsRun run = read_metrics("m.jsonl");
  ASSERT_EQ(run.records.size(), 2u);
  EXPECT_EQ(run.records[0].lm_loss, 5.5);
  EXPECT_EQ(run.records[0].validation_loss, 2.25);
  EXPECT_EQ(run.records[0].tokens_per_second, 1234.5);
  EXPECT_TRUE(std::isnan(run.records[1].lm_loss));
  EXPECT_EQ(run.records[1].validation_loss, std::nullopt);
  EXPECT_TRUE(run.records[1].skipped);
  EXPECT_THAT(run.memory_bytes, ElementsAre(Pair("parameters", 1024)));
  EXPECT_THAT(run.config, ::testing::Contains(Pair("seed", "7")));
  EXPECT_THAT(run.config, ::testing::Contains(Pair("data-path", "[\"x \\\"y\\\"\"]")));
  EXPECT_FALSE(run.version.empty());
}

TEST_F(MetricsFile, OnlyTheFirstLineOfARunDescribesIt) {
  write_steps("m.jsonl", 0, 3);
  const std::string text = read_file("m.jsonl");
  EXPECT_EQ(text.find("\"run\""), text.rfind("\"run\""));
  EXPECT_LT(text.find("\"run\""), text.find('\n'));
}

TEST_F(MetricsFile, ResumeKeepsOneObjectPerStep) {
  write_steps("m.jsonl", 0, 5);
  const std::string before = read_file("m.jsonl");
  write_steps("m.jsonl", 3, 6);
  EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1, 2, 3, 4, 5, 6));
  const std::size_t fourth = before.find("{\"iteration\": 4");
  EXPECT_EQ(read_file("m.jsonl").substr(0, fourth), before.substr(0, fourth));
  EXPECT_FALSE(std::filesystem::exists("m.jsonl.tmp"));
}

TEST_F(MetricsFile, ResumeRemovesATornLine) {
  for (const std::string& torn : {std::string("{\"iteration\": 4, \"cons"), std::string(5'000'000, '\0')}) {
    const std::string path = std::to_string(torn.size()) + ".jsonl";
    write_steps(path, 0, 3);
    write(path, read_file(path) + torn);
    EXPECT_THAT(iterations(path), ElementsAre(1, 2, 3));
    write_steps(path, 4, 5);
    EXPECT_THAT(iterations(path), ElementsAre(1, 2, 3, 5));
  }
}

TEST_F(MetricsFile, ATornLastLineIsLeftOutWithAWarning) {
  for (const std::string& torn : {std::string("{\"iteration\": 2, \"cons"), std::string(5'000'000, '\0')}) {
    write("m.jsonl", "{\"iteration\": 1}\n" + torn);
    ::testing::internal::CaptureStderr();
    EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(),
              "[megalith] warning: m.jsonl:2: the last line is incomplete and skipped: the run ended while writing it, "
              "or is still writing\n");
  }
  ::testing::internal::CaptureStderr();
  write("m.jsonl", "{\"iteration\": 1}\n{\"iteration\": 2}");  // whole, but for its end
  EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1, 2));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// A disk that is full for a while, here for as long as five steps.
TEST_F(MetricsFile, AFullDiskCostsNoLine) {
  write_steps("whole.jsonl", 0, 8);
  std::vector<FaultRequest> faults;
  for (std::int64_t at = 2; at <= 6; ++at)
    faults.push_back({.site = "metrics.write", .at = at, .kind = FaultKind::kEnospc});
  arm_faults(faults);
  ::testing::internal::CaptureStderr();
  write_steps("m.jsonl", 0, 8);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(faults_fired(), 5);
  disarm_faults();
  EXPECT_EQ(read_file("m.jsonl"), read_file("whole.jsonl"));
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 2) << printed;
  EXPECT_THAT(printed, HasSubstr("warning: --metrics-jsonl: cannot write "));
  EXPECT_THAT(printed, HasSubstr("; it is kept and tried again at each step\n"));
  EXPECT_THAT(printed, HasSubstr("--metrics-jsonl: written again, nothing is lost\n"));
}

// Files may have so many bytes, on which the system breaks off within a line.
void limit_files(rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = std::min(bytes, limit.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST_F(MetricsFile, ALineThatBrokeOffGoesOnWhereItDid) {
  write_steps("whole.jsonl", 0, 6);
  const std::string whole = read_file("whole.jsonl");
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  ::testing::internal::CaptureStderr();
  {
    MetricsLog log("m.jsonl", train_options({"--seed", "7"}), 0);
    log.write(step_metrics(1));
    const std::size_t line = whole.size() - whole.rfind("{\"iteration\": 6");
    limit_files(whole.find('\n') + line / 2);
    for (std::int64_t i = 2; i <= 4; ++i) log.write(step_metrics(i));
    EXPECT_EQ(read_file("m.jsonl"), whole.substr(0, whole.find('\n') + line / 2));
    limit_files(RLIM_INFINITY);
    for (std::int64_t i = 5; i <= 6; ++i) log.write(step_metrics(i));
  }
  const std::string printed = ::testing::internal::GetCapturedStderr();
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(read_file("m.jsonl"), whole);
  EXPECT_THAT(printed, HasSubstr("(EFBIG)"));
}

TEST_F(MetricsFile, WhatWaitsIsBounded) {
  std::vector<FaultRequest> faults;
  for (std::int64_t at = 1; at <= 20; ++at)
    faults.push_back({.site = "metrics.write", .at = at, .kind = FaultKind::kEnospc});
  arm_faults(faults);
  ::testing::internal::CaptureStderr();
  {
    AppendLog log(File::append("m.log"), "--flag", "metrics");
    for (int i = 0; i < 20; ++i) log.write(std::string(std::size_t{1} << 20, static_cast<char>('a' + i)));
    log.write("end");
  }
  disarm_faults();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--flag: written again, but 5 records are lost\n"));
  const std::string text = read_file("m.log");
  EXPECT_EQ(text.size(), std::size_t{16} << 20);
  EXPECT_EQ(text.back(), 'p');
}

TEST_F(MetricsFile, AnEvaluationAloneLeavesTheSteps) {
  write_steps("m.jsonl", 0, 5);
  const std::string steps = read_file("m.jsonl");
  write("m.jsonl", steps + "{\"iteration\": 6, \"cons");
  MetricsLog("m.jsonl", train_options({"--skip-train"}), 3)
      .write(EvaluationMetrics{.iteration = 3, .consumed_samples = 96, .loss = 2.25});
  const std::string text = read_file("m.jsonl");
  EXPECT_THAT(text,
              ::testing::StartsWith(steps + R"({"iteration": 3, "evaluation": "validation", )"
                                            R"("consumed_samples": 96, "validation_loss": 2.25, "run": {"megalith")"));
  EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1, 2, 3, 4, 5));
  // Beside a run the file stays the one that the run writes to.
  const auto inode = [] {
    struct stat info {};
    EXPECT_EQ(::stat("m.jsonl", &info), 0);
    return info.st_ino;
  };
  const auto before = inode();
  MetricsLog("m.jsonl", train_options({"--skip-train"}), 3).write(EvaluationMetrics{.iteration = 3});
  EXPECT_EQ(inode(), before);
  write_steps("m.jsonl", 3, 4);
  EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1, 2, 3, 4));
}

TEST_F(MetricsFile, AFreshRunMovesAnEarlierFileAway) {
  write_steps("m.jsonl", 0, 3);
  write_steps("m.jsonl", 0, 2);
  write_steps("m.jsonl", 0, 1);
  EXPECT_THAT(iterations("m.jsonl"), ElementsAre(1));
  EXPECT_THAT(iterations("m.jsonl.1"), ElementsAre(1, 2, 3));
  EXPECT_THAT(iterations("m.jsonl.2"), ElementsAre(1, 2));
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return "exit " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
  }
  return "fine";
}

TEST_F(MetricsFile, AForeignFileIsLeftAsItIs) {
  write("m.jsonl", "a precious text\nin two lines\n");
  EXPECT_EQ(message_of([] { write_steps("m.jsonl", 3, 4); }),
            "exit 4: m.jsonl:1: expected a line of --metrics-jsonl, got \"a precious text\"; give another file; this "
            "file is unchanged");
  EXPECT_EQ(read_file("m.jsonl"), "a precious text\nin two lines\n");
  EXPECT_FALSE(std::filesystem::exists("m.jsonl.tmp"));
}

TEST_F(MetricsFile, AFolderThatIsMissingIsExit3) {
  EXPECT_EQ(message_of([] { write_steps("none/m.jsonl", 0, 1); }),
            "exit 3: --metrics-jsonl: cannot open none/m.jsonl: No such file or directory (ENOENT); check the path and "
            "its permissions");
  EXPECT_EQ(message_of([] { read_metrics("none.jsonl"); }),
            "exit 3: cannot open none.jsonl: No such file or directory (ENOENT); check the path and its permissions");
}

TEST_F(MetricsFile, OffloadIsAnObjectOfNumbers) {
  write("m.jsonl", "{\"iteration\": 1}\n");
  EXPECT_FALSE(read_metrics("m.jsonl").records.at(0).offload);
  write("m.jsonl", R"({"iteration": 1, "offload": {"stages": [3]}})");
  EXPECT_THAT(message_of([] { read_metrics("m.jsonl"); }), HasSubstr("m.jsonl:1: offload: stages: expected objects"));
}

TEST_F(MetricsFile, ReadingNamesTheDamagedLine) {
  const std::string remedy = "; give a file of train --metrics-jsonl";
  write("m.jsonl", "");
  EXPECT_EQ(message_of([] { read_metrics("m.jsonl"); }),
            "exit 4: m.jsonl: expected at least one step, got none" + remedy);
  write("m.jsonl", "{\"iteration\": 1}\n{\"iteration\": \n{\"iteration\": 3}\n");
  EXPECT_EQ(message_of([] { read_metrics("m.jsonl"); }),
            "exit 4: m.jsonl:2: expected a JSON object with an iteration, got \"{\\\"iteration\\\": \"" + remedy);
  write("m.jsonl", "{\"iteration\": 2}\n{\"iteration\": 2}\n");
  EXPECT_EQ(message_of([] { read_metrics("m.jsonl"); }),
            "exit 4: m.jsonl:2: expected an iteration after 2, got 2" + remedy);
  write("m.jsonl", std::string(1'000'000, '[') + "\n");
  EXPECT_THAT(message_of([] { read_metrics("m.jsonl"); }), HasSubstr("exit 4: m.jsonl:1: "));
}

TEST_F(MetricsFile, ReadingTakesNumbersAsTheyAre) {
  const auto error_of_line = [&](const std::string& members) {
    write("m.jsonl", "{\"iteration\": 7, " + members + "}\n");
    return message_of([] { read_metrics("m.jsonl"); });
  };
  const std::string most = "; repair the file or get it again";
  EXPECT_EQ(error_of_line("\"consumed_samples\": 18446744073709551615"),
            "exit 4: m.jsonl:1: consumed_samples: expected an integer from 0 to 281474976710656, got "
            "18446744073709551615" +
                most);
  EXPECT_EQ(error_of_line("\"memory_peak_bytes\": -1"),
            "exit 4: m.jsonl:1: memory_peak_bytes: expected an integer from 0 to 281474976710656, got -1" + most);
  EXPECT_EQ(error_of_line("\"memory_bytes\": {\"a\\nb\": 9223372036854775807}"),
            "exit 4: m.jsonl:1: memory_bytes: 'a\\x0ab': expected an integer from 0 to 281474976710656, got "
            "9223372036854775807" +
                most);
  EXPECT_EQ(error_of_line("\"lm_loss\": \"5\""),
            "exit 4: m.jsonl:1: lm_loss: expected a number or null, got string" + most);
  EXPECT_EQ(error_of_line("\"skipped\": 1"), "exit 4: m.jsonl:1: skipped: expected true or false, got number" + most);
  EXPECT_EQ(error_of_line("\"run\": []"), "exit 4: m.jsonl:1: run: expected an object, got array" + most);
  EXPECT_EQ(error_of_line("\"run\": {\"commit\": 1}"), "exit 4: m.jsonl:1: run: commit: expected a text, got 1" + most);
  EXPECT_EQ(error_of_line("\"lm_loss\": null, \"of_a_later_version\": [{}]"), "fine");
  write("m.jsonl", "{\"iteration\": 18446744073709551615}\n");
  EXPECT_THAT(message_of([] { read_metrics("m.jsonl"); }), HasSubstr("expected a JSON object with an iteration"));
}

// Nesting ended the program, and many keys took hours.
TEST_F(MetricsFile, ReadingIsBounded) {
  const auto error_of_line = [&](const std::string& line) {
    write("m.jsonl", line + "\n");
    return message_of([] { read_metrics("m.jsonl"); });
  };
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_THAT(error_of_line("{\"iteration\": 1, \"run\": {\"config\": {\"a\": " + deep + "}}}"),
              HasSubstr("m.jsonl:1: "));
  std::string keys;
  for (int i = 0; i < 60'000; ++i) keys += ", \"" + std::to_string(i) + "\": 0";
  EXPECT_EQ(error_of_line("{\"iteration\": 1" + keys + "}"), "fine");
  EXPECT_THAT(error_of_line("{\"iteration\": 1, \"memory_bytes\": {" + keys.substr(2) + "}}"),
              HasSubstr("memory_bytes: expected at most 1000 categories, got 60000"));
  EXPECT_THAT(error_of_line("{\"iteration\": 1, \"iteration\": 2}"), HasSubstr("m.jsonl:1: "));
  EXPECT_THAT(error_of_line("{\"iteration\": 1" + std::string(1 << 20, ' ') + "}"), HasSubstr("m.jsonl:1: "));
}

}  // namespace
}  // namespace megalith::test
