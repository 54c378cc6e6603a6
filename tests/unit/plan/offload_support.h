// Shared code of the tests of plans that move activations.
#pragma once

#include "apps/planning/plan_steps.h"
#include "apps/summary/offload_report.h"
#include "tests/unit/plan/plan_support.h"

namespace megalith::test {

inline const Words kExperts = {"--num-experts",         "4",  "--moe-router-topk", "2",
                               "--moe-ffn-hidden-size", "32", "--swiglu",          "--disable-bias-linear",
                               "--ffn-hidden-size",     "64", "--moe-layer-freq",  "1"};

inline StepPlans plans_of(const Words& flags, int ranks = 1, int rank = 0) {
  const Options options = complete(plan_flags() + flags, ranks);
  return record_step(options, run_config(options, ranks), rank, {.max_microbatches = 64}).plans;
}

inline std::string format_offload(const StepPlans& plans) { return to_text(offload_tables(plans, "")); }

}  // namespace megalith::test
