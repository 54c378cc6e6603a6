// Small models, round rates and steps on thread ranks for the tests of plan's forecast.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "apps/flags/complete_options.h"
#include "apps/flags/flags.h"
#include "apps/run/step.h"
#include "apps/train/run_setup.h"
#include "parallel/cost/rates.h"
#include "tests/support/words.h"

namespace megalith::test {

// 4 layers, hidden 64, 4 heads, sequence 32, global batch 16, vocabulary 256, on the CPU's kernels.
inline Words plan_flags() {
  return words(
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 "
      "--global-batch-size 16 --tokenizer-type null --vocab-size 255 --device cpu");
}

inline Options complete(const Words& flags, int ranks) {
  Options options = parse_flags(App::kPlan, flags + Words{"--world-size", std::to_string(ranks)}).options;
  complete_options(options, tokenizer_of(options), ranks);
  return options;
}

// 1 TFLOP/s, 1 TB/s and 100 GB/s, without overheads.
inline std::string round_rates() {
  return "device = \"test\"\ndevice-memory-gib = 1\ndevice-reserve-gib = 0\ngemm-size = [1]\ngemm-tflops = [1]\n"
         "attention-width = [64]\nattention-length = [1024]\nattention-forward-tflops = [1]\n"
         "attention-backward-tflops = [1]\nmemory-gbps = 1000\nkernel-names = []\nkernel-gbps = []\nkernel-us = 0\n"
         "graph-kernel-us = 0\nstart-us = 0\nstart-names = []\nstart-names-us = []\nlaunch-us = 0\n"
         "graph-launch-us = 0\nhost-ranks = 4\nhost-memory-gib = 64\nhost-link-gbps = 100\nhost-link-us = 0\n"
         "host-link-busy-gbps = 100\n"
         "peer-gbps = 200\npeer-us = 0\nunit-copies-gbps = 100\n"
         "network-gbps = 10\nnetwork-us = 0\n"
         "copy-to-host-gbps = 50\ncopy-from-host-gbps = 50\ncopy-to-host-all-gbps = 100\n"
         "copy-from-host-all-gbps = 100\noverlap-share = 1\n";
}

// A suggestion's memory is not searched for a tighter layout, as that of a plan and of a run is.
inline void expect_memory_of_suggestion(std::size_t planned, std::size_t suggested) {
  EXPECT_LE(planned, suggested);
  EXPECT_GE(static_cast<double>(planned), 0.98 * static_cast<double>(suggested));
}

// These with other lines in the place of those of the same keys.
inline Rates rates_with(const Words& lines) {
  std::string text = round_rates();
  for (const std::string& line : lines) {
    const std::size_t at = text.find("\n" + line.substr(0, line.find('=') + 1)) + 1;
    text.replace(at, text.find('\n', at) - at, line);
  }
  return parse_rates(text, "rates.toml");
}

// Runs on thread ranks, each in the state between two steps of a run: `step` is the next one, to its end.
void on_planned_ranks(const Options& options, int ranks,
                      const std::function<void(Rank& rank, const std::function<void()>& step)>& act);

}  // namespace megalith::test
