// --trace: a window of steps of all ranks in one file.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/training_support.h"

namespace megalith::test {
namespace {

using nlohmann::json;
using ::testing::Contains;

struct Picture {
  std::map<std::pair<int, int>, std::string> threads;  // key: (pid, tid)
  std::vector<json> spans;
  const json* find(int pid, const std::string& name) const {
    for (const json& span : spans)
      if (span["pid"] == pid && span["name"] == name && threads.at({pid, span["tid"]}) != "host") return &span;
    return nullptr;
  }
};

Picture read(const std::string& path) {
  std::ifstream file(path);
  const json all = json::parse(file);
  Picture picture;
  for (const json& event : all["traceEvents"]) {
    if (event["ph"] == "X") picture.spans.push_back(event);
    if (event["name"] == "thread_name") picture.threads[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  return picture;
}

std::vector<std::string> window(const std::string& path, int begin, int end) {
  return {"--trace", path, "--profile-step-start", std::to_string(begin), "--profile-step-end", std::to_string(end)};
}

bool encloses(const json& outer, const json& inner) {
  const auto begin = [](const json& span) { return span["ts"].get<double>(); };
  const auto end = [](const json& span) { return span["ts"].get<double>() + span["dur"].get<double>(); };
  return begin(outer) <= begin(inner) + 0.01 && end(inner) <= end(outer) + 0.01;
}

// Spans of a thread that Perfetto would drop. It sorts spans by their start in nanoseconds, ties in the file's order,
// and requires each span within the open one or after it. Thread 0 is separate.
std::vector<std::string> overlapping(const Picture& picture) {
  struct Times {
    std::int64_t begin, end;
    std::string name;
  };
  std::map<std::pair<int, int>, std::vector<Times>> threads;
  for (const json& span : picture.spans) {
    const auto time = [&](const char* key) { return std::llround(span[key].get<double>() * 1000); };
    EXPECT_GT(span["tid"], 0);
    threads[{span["pid"], span["tid"]}].push_back({time("ts"), time("ts") + time("dur"), span["name"]});
  }
  std::vector<std::string> dropped;
  for (auto& [thread, spans] : threads) {
    std::stable_sort(spans.begin(), spans.end(), [](const Times& a, const Times& b) { return a.begin < b.begin; });
    std::vector<Times> open;
    for (const Times& span : spans) {
      while (!open.empty() && open.back().end <= span.begin) open.pop_back();
      if (!open.empty() && open.back().end < span.end) {
        dropped.push_back(span.name + " in " + open.back().name);
      } else {
        open.push_back(span);
      }
    }
  }
  return dropped;
}

TEST(TraceOfARun, ShowsTheStepsOfTheWindowOnAllRanks) {
  const TestFolder scratch;
  const std::string path = scratch.path("trace.json");
  const RunResult plain = train({.flags = {}, .ranks = 2});
  const RunResult traced = train({.flags = window(path, 2, 4), .ranks = 2});
  expect_same_run(plain, traced);

  const Picture picture = read(path);
  EXPECT_THAT(overlapping(picture), ::testing::IsEmpty());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(picture.find(rank, "step 1"), nullptr);
    EXPECT_EQ(picture.find(rank, "step 4"), nullptr);
    const json* const step = picture.find(rank, "step 2");
    ASSERT_NE(step, nullptr);
    EXPECT_NE(picture.find(rank, "step 3"), nullptr);
    const json* const layer = picture.find(rank, "layer 1 mlp backward_data microbatch 1");
    ASSERT_NE(layer, nullptr);
    EXPECT_TRUE(encloses(*step, *layer));
    const json* const gemm = picture.find(rank, "gemm");
    ASSERT_NE(gemm, nullptr);
    EXPECT_TRUE(encloses(*step, *gemm));
    EXPECT_GT((*gemm)["args"]["flops"].get<double>(), 0);
    EXPECT_GT((*gemm)["args"]["bytes"].get<double>(), 0);
    bool reduced = false;
    for (const json& span : picture.spans)
      reduced = reduced || (span["pid"] == rank && span["name"] == "all_reduce" &&
                            picture.threads.at({rank, span["tid"]}) == "communication");
    EXPECT_TRUE(reduced);
  }
}

TEST(TraceOfARun, ProfileRanksChoosesTheRanks) {
  const TestFolder scratch;
  const std::string path = scratch.path("trace.json");
  train({.flags = window(path, 1, 100) + Words{"--profile-ranks", "1"}, .ranks = 2});
  std::set<int> ranks;
  for (const json& span : read(path).spans) ranks.insert(span["pid"].get<int>());
  EXPECT_EQ(ranks, std::set<int>{1});
  EXPECT_EQ(error_of(ExitCode::kUsage,
                     [&] {
                       train({.flags = window(path, 1, 2) + Words{"--profile-ranks", "0", "2"}, .ranks = 2});
                     }),
            "--profile-ranks: expected ranks from 0 to 1, got 2");
}

TEST(TraceOfARun, ARunThatEndsBeforeTheWindowSaysSo) {
  const TestFolder scratch;
  const std::string path = scratch.path("trace.json");
  testing::internal::CaptureStderr();
  train({.flags = window(path, 50, 52)});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("--trace " + path + ": not written, as no step of [50, 52) ran"));
  EXPECT_FALSE(std::ifstream(path).is_open());
}

TEST(TraceOfARun, AFolderThatIsMissingIsReportedBeforeTheFirstStep) {
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { train({.flags = window("/nowhere/at/all.json", 1, 2)}); }),
              HasSubstr("/nowhere/at/all.json"));
}

}  // namespace
}  // namespace megalith::test
