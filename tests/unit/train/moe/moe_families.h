// Tiny models with experts, of four layers.
#pragma once

#include <vector>

#include "tests/unit/train/layouts.h"

namespace megalith::test {

// All layers with a loss over the microbatch. Or: a dense first layer, sigmoids in groups with a bias, a shared expert
// and a loss over each sequence.
inline std::vector<Family> moe_families() {
  const Words llama = llama_flags() + Words{"--ffn-hidden-size", "32", "--num-experts", "4"};
  return {{"mixtral", llama + Words{"--moe-aux-loss-coeff", "0.1", "--moe-z-loss-coeff", "0.01", "--moe-grouped-gemm",
                                    "--moe-shared-expert-intermediate-size", "24", "--moe-shared-expert-gate"}},
          {"deepseek",
           llama + words("--moe-layer-freq [0]+[1]*3 --moe-ffn-hidden-size 16 --moe-router-score-function sigmoid "
                         "--moe-router-num-groups 2 --moe-router-group-topk 1 --moe-router-topk-scaling-factor 2.5 "
                         "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.1 "
                         "--moe-shared-expert-intermediate-size 24 --moe-router-enable-expert-bias "
                         "--moe-router-bias-update-rate 0.001")}};
}

}  // namespace megalith::test
