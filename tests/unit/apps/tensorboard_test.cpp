#include "apps/metrics/tensorboard.h"
#include "core/reports/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/test_folder.h"

namespace megalith {
namespace {

struct Scalar {
  std::int64_t step = 0;
  std::string tag;
  float value = 0;
  bool operator==(const Scalar&) const = default;
};

// Reads what TensorBoard would: checks lengths and sums, and follows the wire format of Event, Summary and Value.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  bool record(std::string* payload) {
    if (at_ == bytes_.size()) return false;
    const auto length = number<std::uint64_t>();
    const auto length_sum = number<std::uint32_t>();
    EXPECT_EQ(length_sum, mask(crc32c(bytes_.substr(at_ - 12, 8))));
    *payload = bytes_.substr(at_, length);
    at_ += length;
    EXPECT_EQ(number<std::uint32_t>(), mask(crc32c(*payload)));
    return true;
  }

 private:
  static std::uint32_t mask(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }
  template <class T>
  T number() {
    T value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

struct Message {
  std::string bytes;
  std::size_t at = 0;
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string text() {
    const std::uint64_t length = varint();
    at += length;
    return bytes.substr(at - length, length);
  }
};

Scalar parse(const std::string& payload) {
  Scalar scalar;
  Message event{payload};
  EXPECT_EQ(event.varint(), 1u << 3 | 1u);
  event.at += 8;
  EXPECT_EQ(event.varint(), 2u << 3);
  scalar.step = static_cast<std::int64_t>(event.varint());
  EXPECT_EQ(event.varint(), 5u << 3 | 2u);
  Message summary{event.text()};
  EXPECT_EQ(event.at, payload.size());
  EXPECT_EQ(summary.varint(), 1u << 3 | 2u);
  Message value{summary.text()};
  EXPECT_EQ(value.varint(), 1u << 3 | 2u);
  scalar.tag = value.text();
  EXPECT_EQ(value.varint(), 2u << 3 | 5u);
  std::memcpy(&scalar.value, value.bytes.data() + value.at, 4);
  EXPECT_EQ(value.at + 4, value.bytes.size());
  return scalar;
}

TEST(TensorBoard, SumsAreCastagnolis) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(TensorBoard, AScalarReadsBack) {
  const std::string payload = tensorboard_scalar(1.5, 300, "lm loss", 2.25f);
  EXPECT_EQ(parse(payload), (Scalar{300, "lm loss", 2.25f}));
  EXPECT_EQ(parse(tensorboard_scalar(0, 0, "", -0.0f)), (Scalar{0, "", 0.0f}));
  const std::int64_t large = (std::int64_t{1} << 40) + 1;
  EXPECT_EQ(parse(tensorboard_scalar(0, large, std::string(300, 'x'), 1)), (Scalar{large, std::string(300, 'x'), 1}));
}

class TensorBoardFiles : public testing::Test {
 protected:
  ~TensorBoardFiles() override { disarm_faults(); }
  // Payloads of the records of the only file there.
  static std::vector<std::string> payloads(const std::string& folder) {
    std::string content;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_directory()) continue;
      EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
      std::ostringstream all;
      all << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      content = all.str();
      ++files;
    }
    EXPECT_EQ(files, 1);
    Reader reader(content);
    std::vector<std::string> all;
    for (std::string payload; reader.record(&payload);) all.push_back(payload);
    return all;
  }
  static std::vector<Scalar> scalars(const std::string& folder, std::size_t first) {
    std::vector<Scalar> all;
    const std::vector<std::string> records = payloads(folder);
    for (std::size_t i = first; i < records.size(); ++i) all.push_back(parse(records[i]));
    return all;
  }
  static void write_steps(TensorBoardLog& log) {
    StepMetrics metrics{.iteration = 3, .consumed_samples = 24, .global_batch_size = 8, .lm_loss = 5, .grad_norm = 2};
    metrics.step_ms = 500;
    log.write(metrics);
    metrics.iteration = 4;
    metrics.validation_loss = 0.0;
    log.write(metrics);
  }
  std::string by_samples() const { return folder_ + "/by-samples"; }

  TestFolder test_folder_;
  const std::string folder_ = test_folder_.path("events");
};

TEST_F(TensorBoardFiles, AStepHasMegatronsTags) {
  {
    TensorBoardLog log(folder_, RunProgress{});
    write_steps(log);
  }
  EXPECT_THAT(payloads(folder_)[0], ::testing::EndsWith("\x1a\x0d"
                                                        "brain.Event:2"));
  const std::vector<Scalar> steps = scalars(folder_, 2);
  ASSERT_EQ(steps.size(), 7u + 9u);
  EXPECT_EQ(steps[2], (Scalar{3, "lm loss", 5}));
  EXPECT_EQ(steps[3], (Scalar{3, "grad-norm", 2}));
  EXPECT_EQ(steps[4], (Scalar{3, "iteration-time", 0.5f}));
  EXPECT_EQ(steps[15], (Scalar{4, "lm loss validation ppl", 1}));
  const std::vector<Scalar> samples = scalars(by_samples(), 2);
  ASSERT_EQ(samples.size(), 5u + 7u);
  EXPECT_EQ(samples[2], (Scalar{24, "lm loss vs samples", 5}));
  EXPECT_EQ(samples[11], (Scalar{24, "lm loss validation ppl vs samples", 1}));
}

TEST_F(TensorBoardFiles, LayersOfExpertsAreInTheStepsOfTheLogLine) {
  {
    TensorBoardLog log(folder_, RunProgress{}, {.details = 3});
    for (std::int64_t step = 1; step <= 5; ++step) {
      StepMetrics metrics{.iteration = step, .train_iters = 5};
      metrics.experts = {
          {.layer = 2, .min = 1, .max = 5, .mean = 3, .entropy = 0.5, .dropped = 4, .rows_sent = 8, .z_loss = 6}};
      metrics.expert_room_used = 0.5;
      metrics.expert_room_regrows = 1;
      log.write(metrics);
    }
  }
  std::vector<Scalar> steps = scalars(folder_, 2);
  std::erase_if(steps, [](const Scalar& scalar) { return !scalar.tag.starts_with("moe/"); });
  ASSERT_EQ(steps.size(), 3u * 9u);  // 1, 3 and the last one
  EXPECT_EQ(steps[0], (Scalar{1, "moe/load_min_layer_2", 1}));
  EXPECT_EQ(steps[1], (Scalar{1, "moe/load_max_layer_2", 5}));
  EXPECT_EQ(steps[2], (Scalar{1, "moe/load_mean_layer_2", 3}));
  EXPECT_EQ(steps[12], (Scalar{3, "moe/load_entropy_layer_2", 0.5f}));
  EXPECT_EQ(steps[13], (Scalar{3, "moe/dropped_rows_layer_2", 4}));
  EXPECT_EQ(steps[14], (Scalar{3, "moe/rows_sent_layer_2", 8}));
  EXPECT_EQ(steps[24], (Scalar{5, "moe/z_loss_layer_2", 6}));
  EXPECT_EQ(steps[25], (Scalar{5, "moe/room_used", 0.5f}));
  EXPECT_EQ(steps[26], (Scalar{5, "moe/room_regrows", 1}));
}

TEST_F(TensorBoardFiles, AnIntervalLeavesOutStepsButTheFirstTheLastAndEvaluatedOnes) {
  {
    TensorBoardLog log(folder_, RunProgress{}, {.entries = 4});
    for (std::int64_t step = 2; step <= 9; ++step) {
      StepMetrics metrics{.iteration = step, .train_iters = 9};
      if (step == 6) metrics.validation_loss = 1.0;
      log.write(metrics);
    }
  }
  std::vector<std::int64_t> steps;
  for (const Scalar& scalar : scalars(folder_, 2))
    if (scalar.tag == "lm loss") steps.push_back(scalar.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 6, 8, 9}));
}

TEST_F(TensorBoardFiles, ActivationsOnTheHostAreInTheStepsOfTheLogLineAndThoseThatWereTimed) {
  {
    TensorBoardLog log(folder_, RunProgress{}, {.details = 4});
    for (std::int64_t step = 1; step <= 3; ++step) {
      StepMetrics metrics{.iteration = step, .train_iters = 9};
      metrics.offload = {.sums = {.bytes_out = 100, .bytes_back = 90, .saving_bytes = 80, .saved_bytes = 60}};
      if (step == 3)
        metrics.offload->stages = {{.copy_out = 4, .wait_back = 0.5},
                                   {.copy_out = 3, .copy_back = 2, .wait_out = 0.25}};
      log.write(metrics);
    }
  }
  std::vector<Scalar> steps = scalars(folder_, 2);
  std::erase_if(steps, [](const Scalar& scalar) { return !scalar.tag.starts_with("offload/"); });
  ASSERT_EQ(steps.size(), 4u + 8u);
  EXPECT_EQ(steps[0], (Scalar{1, "offload/bytes_out", 100}));
  EXPECT_EQ(steps[1], (Scalar{1, "offload/bytes_back", 90}));
  EXPECT_EQ(steps[2], (Scalar{1, "offload/saved_bytes", 60}));
  EXPECT_EQ(steps[7], (Scalar{3, "offload/saved_of_possible", 0.75f}));
  EXPECT_EQ(steps[8], (Scalar{3, "offload/copy_out_seconds", 4}));
  EXPECT_EQ(steps[9], (Scalar{3, "offload/copy_back_seconds", 2}));
  EXPECT_EQ(steps[10], (Scalar{3, "offload/wait_out_seconds", 0.25f}));
  EXPECT_EQ(steps[11], (Scalar{3, "offload/wait_back_seconds", 0.5f}));
}

// Event: wall_time = 1, step = 2, session_log = 7 { status = 1: START = 1 }, by tensorflow's event.proto.
TEST_F(TensorBoardFiles, AResumedRunStartsASessionAtItsFirstStep) {
  EXPECT_EQ(tensorboard_session_start(0, 301), std::string("\x09\0\0\0\0\0\0\0\0\x10\xad\x02\x3a\x02\x08\x01", 16));
  { const TensorBoardLog log(folder_, RunProgress{.steps = 300, .samples = 9600}); }
  ASSERT_EQ(payloads(folder_).size(), 2u);
  EXPECT_EQ(payloads(folder_)[1].substr(9), tensorboard_session_start(0, 301).substr(9));
  ASSERT_EQ(payloads(by_samples()).size(), 2u);
  EXPECT_EQ(payloads(by_samples())[1].substr(9), tensorboard_session_start(0, 9601).substr(9));
}

TEST_F(TensorBoardFiles, AnEvaluationAloneStartsNone) {
  {
    TensorBoardLog log(folder_, std::nullopt);
    log.write(EvaluationMetrics{.iteration = 6, .consumed_samples = 48, .loss = 0});
  }
  EXPECT_EQ(scalars(folder_, 1), (std::vector<Scalar>{{6, "lm loss validation", 0}, {6, "lm loss validation ppl", 1}}));
  EXPECT_EQ(scalars(by_samples(), 1), (std::vector<Scalar>{{48, "lm loss validation vs samples", 0},
                                                           {48, "lm loss validation ppl vs samples", 1}}));
}

TEST_F(TensorBoardFiles, AFullDiskCostsNoPoint) {
  {
    TensorBoardLog log(folder_, RunProgress{});
    arm_faults({{.site = "tensorboard.write", .at = 1, .kind = FaultKind::kEnospc},
                {.site = "tensorboard.write", .at = 2, .kind = FaultKind::kEnospc}});
    write_steps(log);
    EXPECT_EQ(faults_fired(), 2);
  }
  EXPECT_EQ(scalars(folder_, 2).size(), 7u + 9u);
  EXPECT_EQ(scalars(by_samples(), 2).size(), 5u + 7u);
}

TEST(TensorBoard, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { TensorBoardLog log("/dev/null/folder", std::nullopt); }),
              ::testing::HasSubstr("--tensorboard-dir /dev/null/folder"));
}

}  // namespace
}  // namespace megalith
