#include "parallel/cost/rates.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "core/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {
namespace {

std::string with(const std::string& line, const std::string& replaced) {
  std::string text = round_rates();
  const std::size_t at = text.find(replaced);
  EXPECT_NE(at, std::string::npos) << replaced;
  return text.replace(at, replaced.size(), line);
}

std::string error_of_text(const std::string& text) {
  return error_of(ExitCode::kUsage, [&] { parse_rates(text, "rates.toml"); });
}

TEST(Rates, AreReadInSiUnits) {
  const Rates rates = parse_rates(round_rates(), "rates.toml");
  EXPECT_EQ(rates.device, "test");
  EXPECT_DOUBLE_EQ(rates.device_memory, 1024.0 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(rates.gemm_rate(4096), 1e12);
  EXPECT_DOUBLE_EQ(rates.memory, 1e12);
  EXPECT_DOUBLE_EQ(rates.host.bandwidth, 1e11);
  EXPECT_DOUBLE_EQ(rates.peer.bandwidth, 2e11);
  EXPECT_DOUBLE_EQ(rates_with({"peer-us = 3"}).peer.latency, 3e-6);
  EXPECT_EQ(rates.host_ranks, 4);
  EXPECT_DOUBLE_EQ(rates_with({"graph-launch-us = 2"}).graph_launch_seconds, 2e-6);
  EXPECT_DOUBLE_EQ(rates_with({"start-names = [\"add\"]", "start-names-us = [3]"}).starts.at("add"), 3e-6);
  EXPECT_TRUE(rates.kernels.empty());
}

TEST(Rates, LieBetweenThoseOfMeasuredSizes) {
  std::string text = with("gemm-size = [1000, 4000]", "gemm-size = [1]");
  text.replace(text.find("gemm-tflops = [1]"), 17, "gemm-tflops = [100, 300]");
  const Rates rates = parse_rates(text, "rates.toml");
  EXPECT_DOUBLE_EQ(rates.gemm_rate(10), 100e12);
  EXPECT_DOUBLE_EQ(rates.gemm_rate(1000), 100e12);
  EXPECT_NEAR(rates.gemm_rate(2000), 200e12, 1);
  EXPECT_DOUBLE_EQ(rates.gemm_rate(4000), 300e12);
  EXPECT_DOUBLE_EQ(rates.gemm_rate(1e9), 300e12);
}

TEST(Rates, OfAttentionAreThoseOfTheNearestWidth) {
  std::string text = with("attention-width = [64, 64, 128]", "attention-width = [64]");
  text.replace(text.find("attention-length = [1024]"), 25, "attention-length = [1024, 4096, 2048]");
  text.replace(text.find("attention-forward-tflops = [1]"), 30, "attention-forward-tflops = [1, 3, 7]");
  text.replace(text.find("attention-backward-tflops = [1]"), 31, "attention-backward-tflops = [2, 4, 8]");
  const Rates rates = parse_rates(text, "rates.toml");
  EXPECT_DOUBLE_EQ(rates.attention_rate(64, 100).forward, 1e12);
  EXPECT_NEAR(rates.attention_rate(64, 2048).forward, 2e12, 1);
  EXPECT_NEAR(rates.attention_rate(80, 2048).backward, 3e12, 1);
  EXPECT_DOUBLE_EQ(rates.attention_rate(64, 1e6).backward, 4e12);
  EXPECT_DOUBLE_EQ(rates.attention_rate(100, 2048).forward, 7e12);
  EXPECT_DOUBLE_EQ(rates.attention_rate(128, 1).backward, 8e12);
}

TEST(Rates, OfCopiesAreTheLinksOwnOrAShareOfTheHosts) {
  const Rates rates = rates_with({"host-ranks = 8", "copy-to-host-all-gbps = 120", "copy-from-host-all-gbps = 80"});
  const std::vector<std::array<double, 3>> want = {{1, 50e9, 50e9}, {2, 50e9, 40e9}, {8, 15e9, 10e9}, {16, 15e9, 10e9}};
  for (const auto& [ranks, to_host, from_host] : want) {
    EXPECT_DOUBLE_EQ(rates.copies(static_cast<int>(ranks)).to_host, to_host) << ranks;
    EXPECT_DOUBLE_EQ(rates.copies(static_cast<int>(ranks)).from_host, from_host) << ranks;
  }
}

TEST(Rates, RefuseWhatIsNotSuchAFile) {
  EXPECT_THAT(error_of_text(""), HasSubstr("rates.toml: device: missing"));
  EXPECT_THAT(error_of_text(with("", "memory-gbps = 1000\n")), HasSubstr("memory-gbps: missing"));
  EXPECT_THAT(error_of_text(round_rates() + "memory-gbs = 1\n"), HasSubstr("did you mean memory-gbps?"));
  EXPECT_THAT(error_of_text(round_rates() + "[again]\ndevice = \"b\"\n"), HasSubstr("each key once"));
  EXPECT_THAT(error_of_text(with("memory-gbps = 0", "memory-gbps = 1000")), HasSubstr("above 0"));
  EXPECT_THAT(error_of_text(with("memory-gbps = -1", "memory-gbps = 1000")), HasSubstr("above 0"));
  EXPECT_THAT(error_of_text(with("memory-gbps = nan", "memory-gbps = 1000")), HasSubstr("finite"));
  EXPECT_THAT(error_of_text(with("memory-gbps = inf", "memory-gbps = 1000")), HasSubstr("finite"));
  EXPECT_THAT(error_of_text(with("memory-gbps = 1e300", "memory-gbps = 1000")), HasSubstr("at most"));
  EXPECT_THAT(error_of_text(with("host-memory-gib = 1e12", "host-memory-gib = 64")), HasSubstr("at most 1000000000"));
  EXPECT_THAT(error_of_text(with("memory-gbps = \"1\"", "memory-gbps = 1000")), HasSubstr("a number"));
  EXPECT_THAT(error_of_text(with("memory-gbps = [1]", "memory-gbps = 1000")), HasSubstr("a number"));
  EXPECT_THAT(error_of_text(with("device = 3", "device = \"test\"")), HasSubstr("expected text"));
  EXPECT_THAT(error_of_text(with("gemm-size = true", "gemm-size = [1]")), HasSubstr("a list of 1 to 256"));
  EXPECT_THAT(error_of_text(with("gemm-size = []", "gemm-size = [1]")), HasSubstr("1 to 256 items"));
  EXPECT_THAT(error_of_text(with("gemm-size = [1, 2]", "gemm-size = [1]")), HasSubstr("2 items, as gemm-size has"));
  EXPECT_THAT(error_of_text(with("gemm-size = [\"x\"]", "gemm-size = [1]")), HasSubstr("\"x\""));
  EXPECT_THAT(error_of_text(with("kernel-names = [\"add\"]", "kernel-names = []")), HasSubstr("1 items"));
  EXPECT_THAT(error_of_text(with("host-ranks = 2.5", "host-ranks = 4")), HasSubstr("an integer from 1"));
  EXPECT_THAT(error_of_text(with("host-ranks = 0", "host-ranks = 4")), HasSubstr("an integer from 1"));
  EXPECT_THAT(error_of_text(with("overlap-share = 1.5", "overlap-share = 1")), HasSubstr("at most 1"));
  EXPECT_THAT(error_of_text(with("device-reserve-gib = 1", "device-reserve-gib = 0")), HasSubstr("less than"));
  EXPECT_THAT(error_of_text("gemm-size = [[1]]"), HasSubstr("nested"));
  EXPECT_THAT(error_of_text(std::string(1 << 17, '#')), HasSubstr("at most 64 KiB"));
  EXPECT_THAT(error_of_text("device = \"\x01"), HasSubstr("rates.toml"));
  std::string twice = with("kernel-names = [\"add\", \"add\"]", "kernel-names = []");
  twice.replace(twice.find("kernel-gbps = []"), 16, "kernel-gbps = [1, 2]");
  EXPECT_THAT(error_of_text(twice), HasSubstr("\"add\" twice"));
  EXPECT_THAT(error_of_text(with("start-names = [\"add\"]", "start-names = []")),
              HasSubstr("start-names-us: expected 1 items, as start-names has"));
  std::string falling = with("gemm-size = [2, 2]", "gemm-size = [1]");
  falling.replace(falling.find("gemm-tflops = [1]"), 17, "gemm-tflops = [1, 1]");
  EXPECT_THAT(error_of_text(falling), HasSubstr("ascending sizes"));
}

TEST(Rates, OfAFileThatIsNotThereAreAnError) {
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { read_rates("/nowhere/rates.toml"); }), HasSubstr("--rates"));
}

TEST(Rates, OfTheRepositoryAreWellFormed) {
  const Rates rates = read_rates(MEGALITH_SOURCE_DIR "/configs/rates/h200.toml");
  EXPECT_EQ(rates.device, "NVIDIA H200");
  EXPECT_GT(rates.gemm_rate(8192), 1e14);
}

}  // namespace
}  // namespace megalith::test
