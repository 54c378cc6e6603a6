// Reports of a run about offloaded activations: bytes that really moved, also of rows that ranks shard. Metrics and log
// have times of copies and waits, and the trace has each copy.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "apps/config/logging_options.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

using nlohmann::json;

constexpr std::int64_t kRanks = 4, kMicrobatches = 2, kTokens = 32, kTopk = 2, kWidth = 24;

const Words kFlags = Words{"--num-layers",       "4", "--hidden-size",       "16", "--seq-length",  "16",
                           "--micro-batch-size", "2", "--global-batch-size", "8",  "--train-iters", "5"} +
                     llama_flags() +
                     Words{"--ffn-hidden-size",
                           "32",
                           "--num-experts",
                           "4",
                           "--moe-ffn-hidden-size",
                           std::to_string(kWidth),
                           "--moe-router-topk",
                           std::to_string(kTopk),
                           "--expert-model-parallel-size",
                           "2",
                           "--pipeline-model-parallel-size",
                           "2",
                           "--fine-grained-activation-offloading",
                           "--min-offload-bytes",
                           "0",
                           "--offload-modules",
                           "moe_act"};

std::vector<json> lines_of(const std::string& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

// Copies in the trace, by rank and the name of their stream.
std::map<std::pair<int, std::string>, std::int64_t> copies_in(const std::string& path) {
  std::ifstream file(path);
  const json trace = json::parse(file);
  std::map<std::pair<int, int>, std::string> threads;
  std::map<std::pair<int, std::string>, std::int64_t> copies;
  for (const json& event : trace["traceEvents"])
    if (event["name"] == "thread_name") threads[{event["pid"], event["tid"]}] = event["args"]["name"];
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X" && event["name"] == "copy_rows")
      ++copies[{event["pid"], threads[{event["pid"], event["tid"]}]}];
  return copies;
}

// A step's line of metrics, and of the log if its copies are timed.
void expect_offload_of_step(const json& line, const RunResult& run, const std::string& log) {
  const json& offload = line.at("offload");
  std::int64_t slots = 0, planned = 0;
  for (const RankActivity& rank : run.ranks) {
    slots += rank.slots;
    planned += static_cast<std::int64_t>(rank.host_planned);
  }
  EXPECT_EQ(offload["slots"], slots);
  EXPECT_GT(offload["bytes_out"], 0);
  EXPECT_EQ(offload["bytes_out"], offload["bytes_back"]);
  EXPECT_EQ(offload["host_bytes"], planned);
  EXPECT_GT(offload["saving_bytes"], 0);
  EXPECT_FALSE(offload.contains("saved_driver_bytes"));
  const int step = line["iteration"];
  const bool is_timed = step == 3 || step == 5;
  ASSERT_EQ(offload.contains("stages"), is_timed) << step;
  EXPECT_EQ(log.find(fmt::format("offload of stage 1 in step {} | ", step)) != std::string::npos, is_timed);
  if (!is_timed) return;
  ASSERT_EQ(offload["stages"].size(), 2u);
  for (const json& stage : offload["stages"]) {
    EXPECT_EQ(stage["slots"] > 0, stage["copy_out_ms"] > 0);
    EXPECT_EQ(stage["slots"] > 0, stage["copy_back_ms"] > 0);
    EXPECT_GE(stage["wait_back_ms"], 0);
    EXPECT_GT(stage["step_ms"], stage["wait_out_ms"]);
  }
}

TEST(MoeCopies, AreCountedTimedAndDrawn) {
  const TestFolder scratch;
  std::mutex mutex;
  std::map<int, std::array<std::int64_t, 2>> moved;  // in the last step, by rank
  std::vector<json> lines;
  const auto read = [&](Trainer& trainer, int rank) {
    const std::lock_guard lock(mutex);
    const auto* const bytes = trainer.rank().step.moved_bytes.as<const std::int64_t>();
    moved[rank] = {bytes[0], bytes[1]};
    if (rank == 0) lines = lines_of(trainer.rank().options.logging.metrics_jsonl);
  };
  const Words trace = {"--trace", scratch.path("trace.json"), "--profile-step-start", "2", "--profile-step-end", "3"};
  testing::internal::CaptureStderr();
  const RunResult run = train({.flags = kFlags + trace, .ranks = kRanks, .finish = read});
  const std::string log = testing::internal::GetCapturedStderr();

  // Tokens of two ranks have kTopk rows each on one of the two or the other, of gate and up in fp32.
  constexpr std::int64_t kRowBytes = 2 * kWidth * 4;
  std::int64_t all = 0, want = 0;
  for (const auto& [rank, bytes] : moved) {
    const RankActivity& did = run.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_LT(bytes[0], did.slot_bytes * kMicrobatches);
    EXPECT_EQ(did.offload.bounded_out, did.offload.bytes_out);
    all += bytes[0];
    want += did.slots * kMicrobatches * kTokens * kTopk * kRowBytes;
  }
  EXPECT_GT(want, 0);
  EXPECT_EQ(all, want);

  ASSERT_EQ(lines.size(), 5u);
  for (const json& line : lines) expect_offload_of_step(line, run, log);
  EXPECT_EQ(lines[4]["offload"]["bytes_out"], want);  // over all ranks
  EXPECT_THAT(log, HasSubstr(fmt::format("offload of stage 0 in step 5 | {} slots, ", run.ranks[0].slots)));

  const auto copies = copies_in(scratch.path("trace.json"));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::int64_t slots = run.ranks[static_cast<std::size_t>(rank)].slots;
    if (slots == 0) continue;
    for (const char* const stream : {"offload", "reload"})
      EXPECT_EQ(copies.at({rank, stream}), slots * kMicrobatches) << stream;
  }
}

// In each layer the norm's output moves completely. Only the arrived tokens in use move, eagerly too.
TEST(MoeCopies, TokensThatArrivedMoveAsManyAsAreInUse) {
  constexpr std::int64_t kNormBytes = kTokens * 16 * 4;
  const Words local = {"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  for (const Words& graphs : {Words{}, local + Words{"layer"}, local + Words{"moe_router", "moe_preprocess"}}) {
    std::mutex mutex;
    std::map<int, std::int64_t> moved;  // rows in use, in the last step
    const auto read = [&](Trainer& trainer, int rank) {
      const std::lock_guard lock(mutex);
      moved[rank] = trainer.rank().step.moved_bytes.as<const std::int64_t>()[0];
    };
    const RunResult run =
        train({.flags = kFlags + Words{"--offload-modules", "expert_fc1"} + graphs, .ranks = kRanks, .finish = read});
    std::int64_t all = 0, most = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      const RankActivity& did = run.ranks[static_cast<std::size_t>(rank)];
      const std::int64_t layers = did.slots / 2;
      const std::int64_t arrived = did.slot_bytes - layers * kNormBytes;  // at their full capacity
      EXPECT_EQ(did.offload.bounded_out * did.slot_bytes, did.offload.bytes_out * arrived);
      EXPECT_LE(moved[rank], arrived * kMicrobatches);
      // Both are written within a graph, even if experts read them outside of it.
      EXPECT_EQ(did.offload.from_within, graphs.empty() ? 0 : did.offload.offloads - did.slots * kMicrobatches);
      all += moved[rank];
      most += arrived * kMicrobatches;
    }
    EXPECT_GT(all, 0);
    EXPECT_LT(all, most);
  }
}

// Only the second stage moves activations; rank 0 still reports them.
TEST(MoeCopies, OfOtherStagesAreReportedByRankZero) {
  std::vector<json> lines;
  std::int64_t bytes = 0;
  std::mutex mutex;
  const auto read = [&](Trainer& trainer, int rank) {
    const std::lock_guard lock(mutex);
    if (trainer.rank().offload) bytes += trainer.rank().step.moved_bytes.as<const std::int64_t>()[0];
    if (rank == 0) lines = lines_of(trainer.rank().options.logging.metrics_jsonl);
  };
  Words flags = kFlags;
  ASSERT_EQ(flags.back(), "moe_act");
  flags.back() = "moe_act:2";
  const RunResult run = train({.flags = flags, .ranks = kRanks, .finish = read});
  EXPECT_EQ(run.ranks[0].slots, 0);
  ASSERT_EQ(lines.size(), 5u);
  for (const json& line : lines) {
    EXPECT_GT(line.at("offload")["slots"], 0);
    EXPECT_GT(line["offload"]["bytes_out"], 0);
  }
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(lines[4]["offload"]["bytes_out"], bytes);
  EXPECT_EQ(lines[4]["offload"]["stages"][0]["slots"], 0);
  EXPECT_GT(lines[4]["offload"]["stages"][1]["copy_out_ms"], 0);
}

}  // namespace
}  // namespace megalith::test
