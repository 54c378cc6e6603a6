// A run that saves again and again needs no more memory, open files and threads in its last quarter than in its second.
// Longer: MEGALITH_LEAK_STEPS=5000 (tests/soak.sh), with 200 saves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/distributed/e2e/program.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;

constexpr long kStepsPerSave = 25;
constexpr long kMaxGrowthKib = 1024;  // growth between quarters of the run; a leak of one kibibyte a step exceeds it

struct Usage {
  std::uintmax_t progress = 0;  // bytes of the metrics so far, a line a step
  long resident_kib = 0;
  long descriptors = 0;
  long threads = 0;
};

// Returns zeros if the process is ending.
Usage usage_of(pid_t pid) {
  Usage usage;
  const std::string folder = fmt::format("/proc/{}", pid);
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) usage.resident_kib = std::atol(line.c_str() + 6);
    if (line.starts_with("Threads:")) usage.threads = std::atol(line.c_str() + 8);
  }
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder + "/fd", error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    ++usage.descriptors;
  return error || usage.resident_kib == 0 ? Usage{} : usage;
}

// Minimum that a process never fell below; files that a save opens for a moment do not count.
Usage least(const std::vector<Usage>& samples, std::uintmax_t begin, std::uintmax_t end) {
  Usage result;
  for (const Usage& sample : samples) {
    if (sample.progress < begin || sample.progress >= end) continue;
    const bool first = result.progress++ == 0;
    const auto lower = [&](long& to, long value) { to = first ? value : std::min(to, value); };
    lower(result.resident_kib, sample.resident_kib);
    lower(result.descriptors, sample.descriptors);
    lower(result.threads, sample.threads);
  }
  return result;
}

TEST(Leaks, MemoryDescriptorsAndThreadsStayConstant) {
  const char* wanted = std::getenv("MEGALITH_LEAK_STEPS");
  const long steps = wanted == nullptr ? 1000 : std::atol(wanted);
  const Folder folder;
  folder.make_text();
  const Words flags = tiny() +
                      words(
                          "--data-path text --log-interval 100000 --eval-interval 50 --eval-iters 1 "
                          "--check-weight-hash-interval 10 --save kept --keep-last 2 --metrics-jsonl m.jsonl "
                          "--tensorboard-dir events") +
                      Words{"--train-iters", std::to_string(steps), "--save-interval", std::to_string(kStepsPerSave)};
  Process run(program_on(2, "train", flags), folder);
  ASSERT_TRUE(run.wait_for_output("saved kept/step_"));
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  std::array<std::vector<Usage>, 2> samples;
  for (bool alive = true; alive;) {
    alive = false;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      std::error_code error;
      const std::uintmax_t progress = fs::file_size(folder.path("m.jsonl"), error);
      Usage usage = usage_of(ranks[rank]);
      if (error || usage.threads == 0) continue;
      usage.progress = progress;
      samples[rank].push_back(usage);
      alive = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Outcome outcome = run.finish();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(folder.read_lines("m.jsonl").size(), static_cast<std::size_t>(steps));
  const std::uintmax_t whole = fs::file_size(folder.path("m.jsonl"));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Usage before = least(samples[rank], whole / 4, whole / 2);
    const Usage after = least(samples[rank], whole - whole / 4, whole);  // not at the end, when threads are joined
    ASSERT_GT(before.progress, 0u);
    ASSERT_GT(after.progress, 0u);
    const std::string text = fmt::format(
        "rank {}: {} steps, {} saves; {} and {} samples; resident {} and {} KiB; {} and {} descriptors; {} "
        "and {} threads",
        rank, steps, steps / kStepsPerSave, before.progress, after.progress, before.resident_kib, after.resident_kib,
        before.descriptors, after.descriptors, before.threads, after.threads);
    fmt::print("{}\n", text);
    EXPECT_LE(after.resident_kib, before.resident_kib + kMaxGrowthKib) << text;
    EXPECT_LE(after.descriptors, before.descriptors) << text;
    EXPECT_LE(after.threads, before.threads) << text;
  }
}

}  // namespace
}  // namespace megalith::test
