// What is around the work of each program: errors that become exit codes, and the time in which a run must start.
#include "core/base/machine/program.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "apps/config/memory_options.h"
#include "apps/flags/flags.h"
#include "apps/train/start.h"
#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/watch/start_watch.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

TEST(Program, NoThreadToBeHadIsALackOfMemory) {
  testing::internal::CaptureStderr();
  const int code = run_program("prepare", []() -> ExitCode {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));  // as std::thread does
  });
  EXPECT_EQ(code, 6);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "prepare: error: the system provides no more threads; raise the limit of processes (ulimit -u, or pids.max "
            "of the cgroup), or start fewer ranks on this machine\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program("prepare", []() -> ExitCode { throw std::runtime_error("a defect"); }), 9);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "prepare: error: a defect\n");
}

// As in the destructor of a JSON value, which allocates.
TEST(ProgramDeathTest, NoMemoryWhereNothingMayThrowIsALackOfMemory) {
  const auto from_no_throw = [](const std::function<void()>& work) {
    return run_program("prepare", [&]() noexcept -> ExitCode { return work(), ExitCode::kOk; });
  };
  EXPECT_EXIT(from_no_throw([] { throw std::bad_alloc(); }), testing::ExitedWithCode(6),
              "^prepare: error: out of host memory");
  EXPECT_EXIT(from_no_throw([] { throw std::logic_error("a defect"); }), testing::ExitedWithCode(9),
              "^prepare: error: a defect\n$");
  EXPECT_EXIT(run_program("prepare", []() -> ExitCode { std::terminate(); }), testing::KilledBySignal(SIGABRT), "");
}

// Also where the user has set it otherwise.
TEST(Program, DeterministicRunsHaveNcclTakeTheSameWayInGraphs) {
  for (const char* before : {"", "1"}) {
    setenv("NCCL_GRAPH_REGISTER", before, 1);
    set_deterministic_environment();
    const char* const value = std::getenv("NCCL_GRAPH_REGISTER");
    ASSERT_NE(value, nullptr);
    EXPECT_STREQ(value, "0");
  }
  unsetenv("NCCL_GRAPH_REGISTER");
}

// train sets both before MPI_Init, which flags are not finished before.
TEST(Program, WhatIsReadFirstSetsDeterminismAndGraphs) {
  FlagParser parser(App::kTrain);
  const Options options = parser.read({"--deterministic-mode", "--cuda-graph-impl", "local"}).options;
  EXPECT_TRUE(options.deterministic_mode);
  EXPECT_EQ(options.memory.cuda_graph_impl, CudaGraphImpl::kLocal);
}

// But for what the user has set.
TEST(Program, RunsWithGraphsTurnOffMixingInNccl) {
  for (const auto& [before, after] :
       {std::pair{"", ""}, std::pair{"1", "1"}, std::pair{static_cast<const char*>(nullptr), "0"}}) {
    before == nullptr ? unsetenv("NCCL_GRAPH_MIXING_SUPPORT") : setenv("NCCL_GRAPH_MIXING_SUPPORT", before, 1);
    set_graphs_environment();
    EXPECT_STREQ(std::getenv("NCCL_GRAPH_MIXING_SUPPORT"), after);
  }
  unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
}

TEST(Program, OfOneProcessIsRefusedWhereALauncherStartedMore) {
  setenv("PMI_SIZE", "3", 1);
  bool worked = false;
  testing::internal::CaptureStderr();
  const int code = run_program("convert", [&] {
    worked = true;
    return ExitCode::kOk;
  });
  unsetenv("PMI_SIZE");
  EXPECT_EQ(code, 2);
  EXPECT_FALSE(worked);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "convert: error: PMI_SIZE=3: expected one process of convert, got 3 together; start convert without a "
            "launcher; if it is the only process, run env -u PMI_SIZE convert ...\n");
}

TEST(StartWatch, EndsAProcessThatDoesNotStart) {
  EXPECT_EXIT(
      {
        StartWatch watch("rank 1/2");
        watch.begin({.what = "flags", .expected = "them to be read", .remedy = "look"}, milliseconds(50));
        watch.begin({.what = "MPI_Init", .expected = "all ranks", .remedy = "look"}, milliseconds(200));
        std::this_thread::sleep_for(std::chrono::seconds(30));
      },
      testing::ExitedWithCode(7),
      "error: \\[rank 1/2\\] MPI_Init: expected all ranks within 0.2 s \\(--comm-timeout\\), got a timeout; look\n");
}

TEST(StartWatch, LetsGoOnWhatEndsInTime) {
  StartWatch watch("");
  for (int i = 0; i < 4; ++i) {
    watch.begin({.what = "MPI_Init", .expected = "all ranks", .remedy = "look"}, milliseconds(2000));
    std::this_thread::sleep_for(milliseconds(10));
  }
  watch.begin({.what = "MPI_Init", .expected = "all ranks", .remedy = "look"}, milliseconds(60));
  watch.end();
  std::this_thread::sleep_for(milliseconds(150));
}

TEST(StartWatch, ReadsTheTimeFromTheCommandLine) {
  const auto time = [](const std::vector<std::string>& arguments) { return timeout_of(arguments).count(); };
  EXPECT_EQ(time({}), 600'000);
  EXPECT_EQ(time({"--config", "x", "--comm-timeout", "2.5"}), 2'500);
  EXPECT_EQ(time({"--comm-timeout=3", "--distributed-timeout-minutes", "5"}), 3'000);
  EXPECT_EQ(time({"--distributed-timeout-minutes=5", "--comm-timeout", "0"}), 300'000);
  EXPECT_EQ(time({"--comm-timeout", "x", "--comm-timeouts", "1", "--comm-timeout"}), 600'000);
  EXPECT_EQ(at_start(milliseconds(10)).count(), 5'000);
  EXPECT_EQ(at_start(milliseconds(9'000)).count(), 9'000);
}

}  // namespace
}  // namespace megalith
