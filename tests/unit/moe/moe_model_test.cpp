// Tests of a complete model with experts. One graph holds forward and backward of a microbatch, and replays it with
// other tokens and routes. A replay needs no host synchronization and no value known at capture.
#include <gtest/gtest.h>

#include "core/model/config.h"
#include "moe/moe_layer.h"
#include "tests/support/device_cases.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/moe/model_of_ranks.h"

namespace megalith::test {
namespace {

struct MoeModelCase {
  std::string name;
  DType dtype;
  DeviceType device;
  friend void PrintTo(const MoeModelCase& c, std::ostream* out) { *out << c.name; }
};

std::vector<MoeModelCase> model_cases() {
  std::vector<MoeModelCase> all;
  for (const DeviceType device : devices()) {
    for (const DType dtype : {DType::kFp32, DType::kBf16})
      all.push_back({std::string(name_of(dtype)) + "_" + std::string(name_of(device)), dtype, device});
  }
  return all;
}

class MoeModel : public OnDevice<MoeModelCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, MoeModel, testing::ValuesIn(model_cases()), [](const auto& c) { return c.param.name; });

TEST_P(MoeModel, OneGraphReplaysAMicrobatchWithOtherTokens) {
  for (const bool fused : {false, true}) {
    ModelCase c{.config = moe_model_config(GetParam().dtype, device()),
                .factories = {.moe = moe_factory()},
                .device = device()};
    c.config.moe.grouped_gemm = c.config.moe.use_transformer_engine_op_fuser = fused;
    expect_replays_with_other_tokens(c, run_model(c));
  }
}

TEST(MoeModelOfRanks, OneGraphReplaysAMicrobatchWithOtherTokens) {
  for (const int ranks : {2, 4}) {
    ThreadWorld(ranks, std::chrono::seconds(60)).run([](Communicator& group) {
      expect_ranks_replay_with_other_tokens(group, DeviceType::kCpu, MoeTokenDispatcher::kAllToAll);
    });
  }
}

}  // namespace
}  // namespace megalith::test
