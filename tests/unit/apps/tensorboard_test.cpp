#include "apps/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"

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

TEST(TensorBoard, AStepHasMegatronsTags) {
  const std::string folder = ::testing::TempDir() + "/tensorboard-test-" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  {
    TensorBoardLog log(folder);
    StepMetrics metrics{.iteration = 3, .consumed_samples = 24, .global_batch_size = 8, .lm_loss = 5, .grad_norm = 2};
    metrics.step_ms = 500;
    log.write(metrics);
    metrics.iteration = 4;
    metrics.validation_loss = 0.0;
    log.write(metrics);
  }
  std::string content;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
    std::ostringstream all;
    all << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    content = all.str();
    ++files;
  }
  EXPECT_EQ(files, 1);
  Reader reader(content);
  std::string payload;
  ASSERT_TRUE(reader.record(&payload));
  EXPECT_THAT(payload, ::testing::EndsWith("\x1a\x0d"
                                           "brain.Event:2"));
  std::vector<Scalar> scalars;
  while (reader.record(&payload)) scalars.push_back(parse(payload));
  ASSERT_EQ(scalars.size(), 12u + 16u);
  EXPECT_EQ(scalars[4], (Scalar{3, "lm loss", 5}));
  EXPECT_EQ(scalars[5], (Scalar{24, "lm loss vs samples", 5}));
  EXPECT_EQ(scalars[6], (Scalar{3, "grad-norm", 2}));
  EXPECT_EQ(scalars[8], (Scalar{3, "iteration-time", 0.5f}));
  EXPECT_EQ(scalars[26], (Scalar{4, "lm loss validation ppl", 1}));
  std::filesystem::remove_all(folder);
}

TEST(TensorBoard, AFolderThatCannotBeMadeIsAnError) {
  try {
    TensorBoardLog log("/dev/null/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFileIo);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--tensorboard-dir /dev/null/folder"));
  }
}

}  // namespace
}  // namespace megalith
