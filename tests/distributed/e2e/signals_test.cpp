// Tests of signals that ask a run to save and end with 75: from people, from schedulers, and repeated by the system.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

constexpr const char* kSecond = "; a second signal ends the run at once";

Words endless(const Words& more) {
  return tiny_mock() + Words{"--train-iters", "1000000", "--log-interval", "100", "--save", "kept"} + more;
}

// Steps last seconds: a request waits for the end of the current one.
Words slow() { return endless({"--global-batch-size", "15000"}); }

// `line` of a shell that ends by exec "$@".
Words in_shell(const std::string& line, const Words& command) {
  return Words{"/bin/bash", "-c", line, "bash"} + command;
}

void expect_saved(const Folder& folder, const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("stopped on request after step "));
  EXPECT_THAT(folder.read("kept/LATEST"), HasSubstr("step_0"));
}

TEST(Signals, EachSavesAndEndsTheRun) {
  for (const auto& [signal, reports] : {std::pair{SIGUSR2, true},
                                        {SIGHUP, false},
                                        {SIGXCPU, false},
                                        {SIGALRM, false},
                                        {SIGVTALRM, false},
                                        {SIGPWR, false}}) {
    SCOPED_TRACE(strsignal(signal));
    const Folder folder;
    Process run(program("train", endless({})), folder);
    ASSERT_TRUE(run.wait_for_handler(SIGPWR));  // the last that is set
    run.signal(signal);
    const Outcome outcome = run.finish();
    expect_saved(folder, outcome);
    const std::string notice = "[megalith] asked to stop: saves after the step under way";
    if (reports) {
      EXPECT_THAT(outcome.err, HasSubstr(notice + kSecond));
    } else {
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(notice), Not(HasSubstr(kSecond))));
    }
  }
}

TEST(Signals, WhatTheSystemRepeatsIsNoSecondRequest) {
  const Folder folder;
  Process run(program("train", slow()), folder);
  ASSERT_TRUE(run.wait_for_handler(SIGPWR));
  for (const int signal : {SIGHUP, SIGXCPU, SIGHUP, SIGALRM, SIGXCPU, SIGTERM}) {  // the first SIGTERM
    run.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
  }
  ASSERT_TRUE(is_running(run.pid()));  // otherwise the step was too short for the check
  expect_saved(folder, run.finish());
}

TEST(Signals, OneFromASchedulerAndASecondEndTheRunAtOnce) {
  const Folder folder;
  Process run(program("train", slow()), folder);
  ASSERT_TRUE(run.wait_for_handler(SIGPWR));
  run.signal(SIGUSR2);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  run.signal(SIGUSR2);
  EXPECT_EQ(run.finish().code, 128 + SIGUSR2);
}

TEST(Signals, WhatNohupIgnoresStaysIgnored) {
  const Folder folder;
  Process run(in_shell("exec nohup \"$@\"", program("train", endless({"--log-interval", "1"}))), folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  run.signal(SIGHUP);
  const std::size_t lines = folder.read_lines("stdout").size();
  EXPECT_TRUE(run.wait_for_output("step " + std::to_string(lines + 200) + "/"));  // it trains on
  run.signal(SIGTERM);
  expect_saved(folder, run.finish());
}

// The system sends SIGXCPU at the limit and then each second; a step may last longer.
TEST(Signals, ALimitOfProcessorTimeSavesAndEndsTheRun) {
  const Folder folder;
  expect_saved(folder, run(in_shell("ulimit -St 1; exec \"$@\"", program("train", slow())), folder));
  const Folder other;
  expect_saved(other, run(in_shell("ulimit -St 1; exec \"$@\"", program("train", endless({}))), other));
}

}  // namespace
}  // namespace megalith::test
