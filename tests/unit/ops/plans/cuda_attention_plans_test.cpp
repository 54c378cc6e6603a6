// Does cuDNN have an engine for the attention of every configuration in configs/, on compute capability 9.0? This test
// needs no GPU: cuDNN accepts a description of the device. It needs a libcuda.so.1, or its lists are empty; without a
// driver the toolkit's stub serves.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <toml++/toml.h>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/ops/attention/attention_cuda.h"
#include "core/ops/attention/attention_graph_cuda.cuh"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

// An H200, as serialized by cuDNN.
constexpr std::string_view kDevice =
    R"({"version":1,"deviceName":"NVIDIA H200","maxGridSize":[2147483647,65535,65535],)"
    R"("maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,)"
    R"("isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":150000000000,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000})";

struct Config {
  std::string name;
  std::int64_t samples, tokens, heads, kv_heads, dim;
};

void PrintTo(const Config& config, std::ostream* os) { *os << config.name; }

std::vector<Config> configs() {
  std::vector<Config> result;
  for (const auto& file : std::filesystem::directory_iterator(MEGALITH_SOURCE_DIR "/configs")) {
    if (file.path().extension() != ".toml") continue;
    const toml::table table = toml::parse_file(file.path().string());
    const auto model = [&table](const char* key) { return table["model"][key].value<std::int64_t>(); };
    const std::int64_t heads = model("num-attention-heads").value();
    std::string name = file.path().stem().string();
    for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    result.push_back({.name = name,
                      .samples = table["training"]["micro-batch-size"].value<std::int64_t>().value(),
                      .tokens = model("seq-length").value(),
                      .heads = heads,
                      .kv_heads = model("num-query-groups").value_or(heads),
                      .dim = model("kv-channels").value_or(model("hidden-size").value() / heads)});
  }
  return result;
}

// q, k and v are slices of one projection, as are their gradients.
AttentionProblem problem_of(const Config& x, AttentionPass pass) {
  const std::int64_t row = (x.heads + 2 * x.kv_heads) * x.dim;
  const HeadStrides fused{.sample = x.tokens * row, .head = x.dim, .token = row};
  const HeadStrides packed{.sample = x.tokens * x.heads * x.dim, .head = x.dim, .token = x.heads * x.dim};
  AttentionProblem problem{.pass = pass,
                           .samples = x.samples,
                           .tokens = x.tokens,
                           .keys = x.tokens,
                           .heads = x.heads,
                           .kv_heads = x.kv_heads,
                           .dim = x.dim,
                           .q = fused,
                           .k = fused,
                           .v = fused,
                           .out = packed};
  if (pass == AttentionPass::kForward) return problem;
  problem.d_out = packed;
  problem.dq = problem.dk = problem.dv = fused;
  return problem;
}

class CudaAttentionPlans : public testing::TestWithParam<Config> {
 protected:
  static void SetUpTestSuite() {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
    ASSERT_NE(dlopen(MEGALITH_CUDA_STUB, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
};
INSTANTIATE_TEST_SUITE_P(Configs, CudaAttentionPlans, testing::ValuesIn(configs()),
                         [](const auto& config) { return config.param.name; });

DnnDescriptor h200() {
  DnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device
      .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           std::span<const char>(kDevice.data(), kDevice.size()))
      .finalize();
  return device;
}

TEST_P(CudaAttentionPlans, AnEngineForEveryPass) {
  const DnnDescriptor device = h200();
  for (const AttentionPass pass :
       {AttentionPass::kForward, AttentionPass::kBackwardAccumulating, AttentionPass::kBackwardDirect}) {
    const AttentionProblem problem = problem_of(GetParam(), pass);
    const AttentionGraph graph(problem);
    EXPECT_FALSE(engine_configs(graph, device).empty()) << to_string(problem);
  }
}

// One sample of as many documents as rows of 128, with and without a window or a causal mask.
TEST_P(CudaAttentionPlans, AnEngineForPackedDocuments) {
  const DnnDescriptor device = h200();
  if (GetParam().dim % 16 != 0) GTEST_SKIP() << "refused";
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackwardAccumulating}) {
    for (const auto& [window, causal] : {std::pair{0, true}, {1024, true}, {0, false}}) {
      AttentionProblem problem = problem_of(GetParam(), pass);
      problem.rows = problem.key_rows = problem.tokens;
      problem.samples = problem.rows / 128;
      problem.window = window;
      problem.causal = causal;
      const AttentionGraph graph(problem);
      EXPECT_FALSE(engine_configs(graph, device).empty()) << to_string(problem);
    }
  }
}

TEST_P(CudaAttentionPlans, AnEngineForAWindow) {
  const DnnDescriptor device = h200();
  for (const AttentionPass pass :
       {AttentionPass::kForward, AttentionPass::kBackwardAccumulating, AttentionPass::kBackwardDirect}) {
    AttentionProblem problem = problem_of(GetParam(), pass);
    problem.window = 100;
    const AttentionGraph graph(problem);
    EXPECT_FALSE(engine_configs(graph, device).empty()) << to_string(problem);
  }
}

TEST(AttentionLibrary, OldVersionsAreRefusedByName) {
  check_attention_library(91501);
  check_attention_library(92100);
  for (const std::size_t version : {std::size_t{91500}, std::size_t{90800}, std::size_t{100000}}) {
    EXPECT_THAT(error_of(ExitCode::kUsage, [&] { check_attention_library(version); }),
                HasSubstr("cuDNN: expected version 9.15.1 or newer"));
  }
}

}  // namespace
}  // namespace megalith::test
