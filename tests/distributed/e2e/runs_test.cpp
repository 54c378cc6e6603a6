// Tests of complete runs under mpirun: resumed, repeated, stopped, planned, drawn.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

void expect_resumed_equals_whole(const Folder& folder, const Words& flags) {
  ASSERT_EQ(train_on_two(folder, flags + Words{"--metrics-jsonl", "whole.jsonl", "--save", "whole"}), 0);
  const Words parts = flags + Words{"--metrics-jsonl", "parts.jsonl", "--save", "parts", "--load", "parts"};
  const Outcome first = run(program_on(2, "train", parts + Words{"--exit-interval", "3"}), folder);
  EXPECT_EQ(first.code, 75);
  EXPECT_THAT(first.err + first.out, HasSubstr("[megalith] stopped on request after step 3\n"));
  EXPECT_EQ(folder.read_lines("parts.jsonl").size(), 3u);
  ASSERT_EQ(train_on_two(folder, parts), 0);
  const Words whole = steps_of(folder.read_lines("whole.jsonl"));
  EXPECT_EQ(whole.size(), 6u);
  EXPECT_EQ(steps_of(folder.read_lines("parts.jsonl")), whole);
  expect_same_tensors(folder, "parts", "whole", 6);
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(Runs, AResumedRunEqualsTheUnbrokenOne) {
  const Folder folder;
  folder.make_text();
  expect_resumed_equals_whole(folder, stateful());
}

TEST(Runs, AResumedRunEqualsTheUnbrokenOneInBf16) {
  const Folder folder;
  folder.make_text();
  expect_resumed_equals_whole(folder, stateful() + Words{"--bf16", "--swiglu", "--position-embedding-type", "rope"});
}

TEST(Runs, StopsOnSigusr1AndGoesOn) {
  const Folder folder;
  const Words flags =
      tiny_mock() + Words{"--log-interval", "1000000", "--metrics-jsonl", "parts.jsonl",  //
                          "--save",         "parts",   "--load",          "parts",       "--lr-decay-iters", "100000"};
  Process first(program_on(2, "train", flags + Words{"--train-iters", "100000"}), folder);
  ASSERT_TRUE(first.wait_for_output("step 1/100000"));
  first.signal(SIGUSR1);
  EXPECT_EQ(first.finish().code, 75);
  const std::size_t stopped = folder.read_lines("parts.jsonl").size();
  ASSERT_GE(stopped, 1u);
  const std::string iters = std::to_string(stopped + 3);
  ASSERT_EQ(train_on_two(folder, flags + Words{"--train-iters", iters}), 0);
  ASSERT_EQ(train_on_two(folder, tiny_mock() + Words{"--lr-decay-iters", "100000", "--train-iters", iters,
                                                     "--metrics-jsonl", "whole.jsonl"}),
            0);
  const Words whole = steps_of(folder.read_lines("whole.jsonl"));
  EXPECT_EQ(whole.size(), stopped + 3);
  EXPECT_EQ(steps_of(folder.read_lines("parts.jsonl")), whole);
}
#endif

// At the start there is nothing to save; the request is kept until there is.
TEST(Runs, ASignalThatComesEarlyIsNotLost) {
  const Folder folder;
  Process run(program("train", tiny_mock() + Words{"--train-iters", "100000", "--save", "kept"}), folder);
  ASSERT_TRUE(run.wait_for_handler(SIGUSR1));
  run.signal(SIGUSR1);
  EXPECT_EQ(run.finish().code, 75);
  EXPECT_THAT(folder.read("kept/LATEST"), HasSubstr("step_0"));
}

TEST(Runs, TwoRunsAreIdentical) {
  const Folder folder;
  folder.make_text();
  for (const char* name : {"a.jsonl", "b.jsonl"})
    ASSERT_EQ(train_on_two(folder, stateful() + Words{"--metrics-jsonl", name}), 0);
  EXPECT_EQ(steps_of(folder.read_lines("a.jsonl")), steps_of(folder.read_lines("b.jsonl")));
}

TEST(Runs, MetricsHaveWhatUsersReadAndAreDrawn) {
  const Folder folder;
  folder.make_text();
  ASSERT_EQ(train_on_two(folder, stateful() + Words{"--metrics-jsonl", "m.jsonl"}), 0);
  const Words lines = folder.read_lines("m.jsonl");
  ASSERT_EQ(lines.size(), 6u);
  for (const char* key : {"iteration", "consumed_samples", "lm_loss", "lm_loss_hex", "grad_norm", "grad_norm_hex",
                          "learning_rate", "tokens_per_second", "tflops_per_device", "step_ms", "memory_peak_bytes"})
    for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr(fmt::format("\"{}\": ", key)));
  EXPECT_THAT(lines[1], HasSubstr("\"validation_loss\": "));
  EXPECT_THAT(lines[0], ::testing::Not(HasSubstr("\"validation_loss\": ")));
  EXPECT_TRUE(std::regex_search(lines[0], std::regex("\"lm_loss_hex\": \"0x1\\.[0-9a-f]+p\\+2\"")));
  EXPECT_EQ(run(program("report", {"m.jsonl", "--output", "m.html"}), folder).code, 0);
  const std::string page = folder.read("m.html");
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("http://")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("src=")));
}

// Compares memory to the byte, by owner. The hazard checker allocates none.
TEST(Runs, TakeTheMemoryThatPlanForecast) {
  const Folder folder;
  const Words shape = {"--num-layers", "4",  "--hidden-size",      "128", "--num-attention-heads", "4",
                       "--seq-length", "64", "--micro-batch-size", "2",   "--global-batch-size",   "8"};
  const Words experts = words(
      "--swiglu --disable-bias-linear --num-experts 4 --moe-ffn-hidden-size 64 --expert-model-parallel-size 2 "
      "--moe-expert-rank-capacity-factor 2");  // capacity that regrows in the run was not planned at the start
  const Words sharded{"--data-parallel-sharding-strategy", "optim_grads_params"};
  const std::vector<Words> models = {
      {},
      {"--bf16", "--recompute-granularity", "full"},
      {"--tensor-model-parallel-size", "2", "--sequence-parallel"},
      {"--context-parallel-size", "2", "--position-embedding-type", "rope"},
      {"--untie-embeddings-and-output-weights", "--swiglu", "--normalization", "RMSNorm", "--recompute-granularity",
       "selective", "--recompute-modules", "layernorm"},
      words("--pipeline-model-parallel-size 2 --pipeline-schedule zb-v --cuda-graph-impl local"),
      sharded + Words{"--bf16"},
      experts + words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules attn_norm "
                      "expert_fc1 --cuda-graph-impl local --cuda-graph-modules attn moe_router"),
      experts + sharded + Words{"--moe-token-dispatcher-type", "allgather"}};
  for (std::size_t m = 0; m < models.size(); ++m) {
    SCOPED_TRACE(testing::PrintToString(models[m]));
    const Outcome plan =
        run(program("plan", shape + models[m] + Words{"--world-size", "2", "--json", "plan.json"}), folder);
    Words flags = tiny_mock() + shape + models[m] +
                  Words{"--eval-interval", "1", "--eval-iters", "1", "--metrics-jsonl", "metrics"};
    if (m % 2 == 1 || m + 3 > models.size()) flags.push_back("--check-hazards");
    std::filesystem::remove(folder.path("metrics"));
    const Outcome run = test::run(program_on(2, "train", flags), folder);
    ASSERT_EQ(plan.code + run.code, 0) << plan.err << run.err;
    const nlohmann::json stage = nlohmann::json::parse(folder.read("plan.json")).at("stages").at(0);
    nlohmann::json metrics = nlohmann::json::parse(folder.read_lines("metrics").back());
    metrics.at("memory_bytes").erase("graphs");
    EXPECT_EQ(metrics.at("memory_bytes"), stage.at("memory_bytes"));
    EXPECT_EQ(metrics.at("memory_peak_bytes"), stage.at("memory_peak_bytes"));
    const std::string launched = number_after(plan.out, "per step and rank, launched[^\n]* in ");
    EXPECT_TRUE(m >= 5 || stage.at("ops").dump() == launched) << stage.at("ops") << ", not " << launched;  // no stages
    const std::string log = run.out + run.err;
    const std::string total = number_after(plan.out, "evaluation step +[0-9.]+ MiB\n +total +");
    EXPECT_EQ(number_after(log, "peak: "), total) << log;
    if (m > 1) continue;
    // The banner under mpirun, and the end of the last log line.
    EXPECT_EQ(number_after(run.out, "\n  memory  at most, rank [01] needs "), total) << run.out;
    EXPECT_EQ(number_after(run.out, "megalith train [^\n]*\n  ranks   "), "2") << run.out;
    EXPECT_TRUE(std::regex_search(run.out, std::regex("  [0-9.]+ tok/s/[CG]PU  [0-9.]+ TFLOP/s  0s left\n")))
        << run.out;
  }
}

// Rates are of GPUs, whatever machine plan runs on; rows of experts then travel as they do there.
TEST(Runs, AreForecastOnGpusWherePlanHasRates) {
  const Folder folder;
  Words plan =
      program("plan", {"--num-layers", "1", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "64",
                       "--swiglu", "--disable-bias-linear", "--num-experts", "4", "--expert-model-parallel-size", "2",
                       "--world-size", "2", "--rates", MEGALITH_SOURCE_DIR "/configs/rates/h200.toml"});
  EXPECT_THAT(run(plan, folder).out, HasSubstr("alltoall: each token"));  // with --device cpu
  std::erase(plan, "--device");
  std::erase(plan, "cpu");
  const Outcome on_gpus = run_ok(plan, folder);
  EXPECT_THAT(on_gpus.out, HasSubstr("flex: ranks read the tokens"));
  const Outcome too_large = run(plan + Words{"--device-memory-gib", "2.0001"}, folder);
  EXPECT_EQ(too_large.code, 6);
  EXPECT_THAT(too_large.err, HasSubstr("memory of a rank of stage 0: expected at most 0.00 GiB, 2.00 of NVIDIA H200 "
                                       "without 2.00 for libraries, got a forecast of 0.0"));
}

TEST(Runs, PrintConfigIsAConfiguration) {
  const Folder folder;
  const Words flags = stateful() + Words{"--bf16",    "--recompute-granularity",
                                         "selective", "--recompute-modules",
                                         "layernorm", "mlp",
                                         "--save",    "quo\"te \\ d"};
  const auto print = [&](const Words& more) {
    const Outcome outcome = run_ok(program("train", more + Words{"--print-config"}), folder);
    return outcome.out;
  };
  const std::string first = print(flags);
  folder.write("run.toml", first);
  const std::regex origin(" *# .*");
  EXPECT_EQ(std::regex_replace(print({"--config", "run.toml"}), origin, ""), std::regex_replace(first, origin, ""));
}

TEST(Runs, ASuppressedWaitIsFoundAndTheWholeRunIsClean) {
  const Folder folder;
  const Words flags = tiny_mock() + Words{"--check-hazards", "--train-iters", "2"};
  EXPECT_EQ(train_on_two(folder, flags), 0);
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  const Outcome found = run(program_on(2, "train", flags + Words{"--suppress-wait", "0"}), folder);
  EXPECT_EQ(found.code, 9);
  EXPECT_THAT(found.err + found.out, HasSubstr("all_reduce on communication is not ordered after"));
#endif
}

int entries_of(const std::string& tag, const std::string& folder) {
  int entries = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    std::stringstream bytes;
    bytes << std::ifstream(file.path(), std::ios::binary).rdbuf();
    const std::string text = bytes.str();
    for (std::size_t at = text.find(tag); at != std::string::npos; at = text.find(tag, at + 1)) ++entries;
  }
  return entries;
}

TEST(Runs, EvaluateAloneAndReportWhenThereIsNothingToDo) {
  const Folder folder;
  folder.make_text();
  const Words flags = stateful() + Words{"--save", "kept", "--load", "kept"};
  const Words thin = {"--tensorboard-dir", "thin", "--tensorboard-log-interval", "5"};
  ASSERT_EQ(run(program("train", flags + thin), folder).code, 0);
  EXPECT_EQ(entries_of("grad-norm", folder.path("thin")), 5);  // 6 steps without the third; 2 and 4 are evaluated
  const Outcome again = run_ok(program("train", flags), folder);
  EXPECT_THAT(again.err + again.out, HasSubstr("nothing to do: the checkpoint's step 6 is not below --train-iters 6"));
  const Outcome evaluation = run_ok(
      program("train", flags + Words{"--skip-train", "--metrics-jsonl", "m.jsonl", "--tensorboard-dir", "events"}),
      folder);
  EXPECT_THAT(folder.read_lines("m.jsonl"),
              ::testing::ElementsAre(::testing::StartsWith("{\"iteration\": 6, \"evaluation\": \"validation\", ")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("events/by-samples")));
  EXPECT_THAT(evaluation.out, HasSubstr(" step 6  validation loss "));
  const Outcome longer = run(program("train", flags + Words{"--train-iters", "7"}), folder);
  EXPECT_THAT(longer.warnings(), ::testing::ElementsAre("[megalith] warning: flags that differ from kept/step_0000006: "
                                                        "--train-iters 7 (was 6), --lr-decay-iters 7 (was 6)"));
}

}  // namespace
}  // namespace megalith::test
