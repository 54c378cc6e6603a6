#include "apps/metrics/wandb.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "apps/config/checkpoint_options.h"
#include "apps/config/training_options.h"
#include "core/base/files/fault.h"
#include "core/reports/wire_format.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/test_folder.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/step_metrics_support.h"

namespace megalith::test {
namespace {

// Payloads of the records of a run file; checks sums and pieces.
std::vector<std::string> records_of(const std::string& bytes) {
  constexpr std::size_t kBlock = 32768;
  std::vector<std::string> records;
  EXPECT_EQ(bytes.substr(0, 7), wandb_file_start());
  std::string payload;
  bool is_inside = false;  // a record that continues
  for (std::size_t at = 7; at < bytes.size();) {
    if (kBlock - at % kBlock < 7) {
      at += kBlock - at % kBlock;
      continue;
    }
    std::uint32_t sum = 0;
    std::uint16_t length = 0;
    std::memcpy(&sum, bytes.data() + at, 4);
    std::memcpy(&length, bytes.data() + at + 4, 2);
    const int type = bytes.at(at + 6);
    EXPECT_EQ(sum, crc32_of<kCrc32>(bytes.substr(at + 6, 1 + std::size_t{length})));
    EXPECT_EQ(type == 3 || type == 4, is_inside);
    is_inside = type == 2 || type == 3;
    payload += bytes.substr(at + 7, length);
    at += 7 + std::size_t{length};
    EXPECT_LE((at - 1) / kBlock, (at - 7 - length) / kBlock);
    if (!is_inside) records.push_back(std::exchange(payload, ""));
  }
  EXPECT_FALSE(is_inside);
  return records;
}

TEST(Wandb, RecordsOfAnySizeKeepToTheirBlocks) {
  EXPECT_EQ(crc32_of<kCrc32>("123456789"), 0xcbf43926u);
  std::string file = wandb_file_start();
  std::vector<std::string> written;
  for (const std::size_t size : {1, 32768 - 7 - 8 - 7 - 7, 6, 32744, 1, 32768, 100000, 0, 32750}) {
    written.emplace_back(size, static_cast<char>('a' + written.size()));
    file += wandb_record(written.back(), file.size());
  }
  EXPECT_EQ(records_of(file), written);
}

std::string run_file(const std::string& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".wandb") found = entry.path().string();
  return read_bytes(found);
}

Options options_with(const std::string& folder) {
  Options options = train_options({"--wandb-project", "p", "--wandb-exp-name", "n"});
  options.logging.wandb_save_dir = folder;
  return options;
}

// Last key and JSON of an item.
std::string item(const std::string& key, const std::string& json) {
  return key + "\x82\x01" + static_cast<char>(json.size()) + json;
}

TEST(Wandb, ARunHasHeaderRunStepsAndExit) {
  const TestFolder folder;
  const Options options = options_with(folder / "runs");
  {
    WandbLog log(options, 3);
    EXPECT_THAT(log.folder(), StartsWith(folder / "runs/wandb/offline-run-20"));
    StepMetrics metrics = step_metrics(4);
    metrics.grad_norm = std::nanf("");
    metrics.experts = {{.layer = 1, .min = 2, .max = 9}};
    metrics.memory_bytes = {{"parameters", 77}};
    log.write(metrics);
    log.write(EvaluationMetrics{.iteration = 4, .consumed_samples = 128, .loss = 2.5});
    log.finish(75);
  }
  const std::vector<std::string> records = records_of(run_file(folder / "runs"));
  ASSERT_EQ(records.size(), 7u);
  EXPECT_EQ(records[0].substr(0, 5), std::string("\x08\x01\xaa\x01", 4) + records[0][4]);  // number 1, field 21
  EXPECT_THAT(records[0], HasSubstr("megalith "));
  for (const std::string& text : {item("resumed_step", "3"), std::string("seq-length"), std::string("\x1a\x01p"),
                                  std::string("B\x01n"), std::string("2\x01n")})
    EXPECT_THAT(records[1], HasSubstr(text));
  for (const std::string& text : {item("lm_loss", "5.5"), item("grad_norm", "NaN"),
                                  std::string("experts\x12\x07") + item("layer_1\x12\x03max", "9"),
                                  item("parameters", "77"), std::string("_timestamp"), std::string("_runtime")}) {
    EXPECT_THAT(records[2], HasSubstr(text));
    EXPECT_THAT(records[3], HasSubstr(text));
  }
  EXPECT_THAT(records[5], HasSubstr(item("validation_loss", "2.5")));
  EXPECT_EQ(records[6].substr(0, 7), "\x08\x07\x92\x01\x04\x08\x4b");  // exit code 75
}

TEST(Wandb, AFullDiskLosesNothing) {
  const TestFolder folder;
  const Options options = options_with(folder / "runs");
  {
    WandbLog log(options, 0);
    for (int step = 1; step <= 40; ++step) {
      if (step == 20)
        arm_faults({{.site = "wandb.write", .at = 1, .kind = FaultKind::kEnospc},
                    {.site = "wandb.write", .at = 3, .kind = FaultKind::kShort}});
      log.write(step_metrics(step));
    }
    disarm_faults();
  }
  EXPECT_EQ(records_of(run_file(folder / "runs")).size(), 82u);
}

}  // namespace
}  // namespace megalith::test
