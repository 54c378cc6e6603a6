#include "tests/style/include_rules.h"

#include <gtest/gtest.h>

#include "tests/support/matchers.h"

namespace megalith::style {
namespace {

struct Case {
  const char* path;
  const char* include;
};

std::vector<std::string> check_one(const Case& c) {
  return check_includes(c.path, std::string("#pragma once\n#include ") + c.include + "\n");
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.path << " includes " << c.include; }

class Forbidden : public testing::TestWithParam<Case> {};
TEST_P(Forbidden, IsReportedWithItsLine) {
  EXPECT_THAT(check_one(GetParam()), ElementsAre(HasSubstr(std::string(GetParam().path) + ":2: includes ")));
}
INSTANTIATE_TEST_SUITE_P(
    IncludeRules, Forbidden,
    testing::Values(
        Case{"core/base/a.h", "\"core/device/stream.h\""}, Case{"core/device/a.h", "\"core/tensor/tensor.h\""},
        Case{"core/tensor/a.h", "\"core/ops/op.h\""}, Case{"core/base/a.h", "\"core/base/files/a.h\""},
        Case{"core/base/text/a.h", "\"core/base/a.h\""}, Case{"core/ops/a.h", "\"core/ops/norm/a.h\""},
        Case{"core/ops/norm/a.h", "\"core/ops/loss/a.h\""}, Case{"core/ops/gemm/a.h", "\"core/ops/attention/a.h\""},
        Case{"core/ops/a.cpp", "\"core/layers/segment.h\""}, Case{"core/layers/a.h", "\"core/model/gpt.h\""},
        Case{"core/model/a.h", "\"core/optim/adamw.h\""}, Case{"core/data/a.h", "\"core/checkpoint/shard.h\""},
        Case{"core/ops/a.cpp", "\"parallel/mesh/mesh.h\""}, Case{"parallel/comm/a.h", "\"parallel/mesh/mesh.h\""},
        Case{"parallel/watch/a.h", "\"parallel/comm/group.h\""},
        Case{"parallel/comm/mpi/a.cpp", "\"parallel/comm/nccl/a.h\""},
        Case{"parallel/comm/nccl/a.cpp", "\"parallel/mesh/mesh.h\""},
        Case{"core/instruments/a.h", "\"core/device/stream.h\""}, Case{"core/device/a.h", "\"core/memory/arena.h\""},
        Case{"core/data/a.h", "\"core/tokenizer/tokenizer.h\""}, Case{"moe/ops/a.cpp", "\"parallel/mesh/mesh.h\""},
        Case{"apps/own.cpp", "\"apps/train/trainer.h\""}, Case{"apps/run/a.h", "\"apps/new_room/a.h\""},
        Case{"parallel/mesh/a.h", "\"parallel/data_parallel/buckets.h\""}, Case{"parallel/mesh/a.h", "\"fsdp/unit.h\""},
        Case{"moe/a.h", "\"fsdp/unit.h\""}, Case{"fsdp/a.h", "\"offload/policy.h\""},
        Case{"offload/a.h", "\"graphs/capture.h\""}, Case{"graphs/a.h", "\"moe/router.h\""},
        Case{"moe/a.h", "\"apps/flags/flags.h\""}, Case{"apps/run/a.h", "\"tests/support/temp.h\""},
        Case{"apps/config/a.h", "\"apps/run/step.h\""}, Case{"apps/run/a.h", "\"apps/flags/flags.h\""},
        Case{"apps/plan/a.cpp", "\"apps/train/banner.h\""}, Case{"core/hf/a.h", "\"parallel/mesh/mesh.h\""},
        Case{"apps/a.cpp", "<fstream>"}, Case{"parallel/comm/a.cpp", "<sys/stat.h>"}, Case{"apps/a.cpp", "\"flags.h\""},
        Case{"apps/a.cpp", "\"../core/base/error.h\""}, Case{"tests/unit/a.cpp", "\"core/base/error.cpp\""}));
INSTANTIATE_TEST_SUITE_P(
    LibraryRules, Forbidden,
    testing::Values(Case{"parallel/comm/mpi/mpi_communicator.h", "<mpi.h>"}, Case{"parallel/mesh/mpi_a.cpp", "<mpi.h>"},
                    Case{"apps/train/main.cpp", "<mpi.h>"}, Case{"tests/unit/a_test.cpp", "<mpi.h>"},
                    Case{"parallel/comm/mpi/mpi_a.cpp", "<nccl.h>"},
                    Case{"core/device/cuda_stream.h", "<cuda_runtime.h>"},
                    Case{"core/ops/gemm/gemm_cpu.cpp", "<cublasLt.h>"},
                    Case{"tests/unit/device/stream_test.cpp", "<cuda_runtime.h>"},
                    Case{"core/ops/gemm/gemm_cpu.cpp", "<Eigen/Core>"}, Case{"core/layers/linear.cpp", "<Eigen/Dense>"},
                    Case{"core/ops/gemm/gemm.cpp", "<gtest/gtest.h>"}, Case{"apps/flags/flags.h", "<CLI/CLI.hpp>"},
                    Case{"apps/flags/flags.h", "<toml++/toml.h>"}, Case{"core/data/a.h", "<nlohmann/json.hpp>"}));

class Allowed : public testing::TestWithParam<Case> {};
TEST_P(Allowed, IsNotReported) { EXPECT_THAT(check_one(GetParam()), IsEmpty()); }
INSTANTIATE_TEST_SUITE_P(
    IncludeRules, Allowed,
    testing::Values(Case{"core/base/a.h", "\"core/base/error.h\""},
                    Case{"core/checkpoint/a.h", "\"core/layers/parameter.h\""},
                    Case{"parallel/mesh/a.h", "\"parallel/comm/group.h\""},
                    Case{"parallel/comm/a.h", "\"core/ops/op.h\""}, Case{"fsdp/a.h", "\"parallel/mesh/mesh.h\""},
                    Case{"apps/a.cpp", "\"graphs/capture.h\""}, Case{"apps/train/a.cpp", "\"apps/run/step.h\""},
                    Case{"apps/own.cpp", "\"apps/run/rank.h\""}, Case{"tests/unit/a.cpp", "\"apps/flags/flags.h\""},
                    Case{"parallel/comm/mpi/mpi_a.cpp", "<mpi.h>"}, Case{"parallel/comm/mpi/mpi_exchange.h", "<mpi.h>"},
                    Case{"parallel/comm/nccl/nccl_a.cpp", "<nccl.h>"},
                    Case{"core/device/cuda/check.h", "<cuda_runtime.h>"}, Case{"core/ops/gemm_cuda.cu", "<cublasLt.h>"},
                    Case{"tests/unit/device/cuda_blas_library_test.cpp", "<cublasLt.h>"},
                    Case{"tests/reference/a.cpp", "<Eigen/Core>"}, Case{"core/data/a.h", "<nlohmann/json_fwd.hpp>"},
                    Case{"apps/flags/flags.cpp", "<CLI/CLI.hpp>"}, Case{"core/base/a.h", "<string>"}));

TEST(IncludeRules, SeesIncludesThroughBlanksAndReportsEach) {
  EXPECT_THAT(check_includes("core/base/a.cpp", "int x;\n  #  include \"apps/flags/flags.h\"\n#include\t<mpi.h>\n"),
              ElementsAre(HasSubstr("core/base/a.cpp:2:"), HasSubstr("core/base/a.cpp:3:")));
}

TEST(IncludeRules, AHeaderNeedsPragmaOnceAndEveryFileARoom) {
  EXPECT_THAT(check_includes("core/base/a.h", "int x;\n"), ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(check_includes("core/base/a.cpp", "int x;\n"), IsEmpty());
  EXPECT_THAT(check_includes("misc/a.cpp", "int x;\n"), ElementsAre(HasSubstr("no known room")));
}

TEST(IncludeRules, FilesAreTouchedThroughOneLayer) {
  for (const char* call : {"std::fopen(path)", "access(path.c_str(), F_OK)", "::unlink(path.c_str())",
                           "std::filesystem::exists(path)", "std::filesystem::create_directories(path, error)"}) {
    const std::string text = std::string("\n  if (") + call + ") return;\n";
    EXPECT_THAT(check_file_access("apps/a.cpp", text), ElementsAre(HasSubstr("apps/a.cpp:2: "))) << call;
    EXPECT_THAT(check_file_access("core/base/files/file.cpp", text), IsEmpty()) << call;
    EXPECT_THAT(check_file_access("tests/unit/a.cpp", text), IsEmpty()) << call;
  }
  for (const char* call : {"std::filesystem::path(path).filename()", "access(op, a)", "IndexedDataset::open(prefix)"})
    EXPECT_THAT(check_file_access("apps/a.cpp", call), IsEmpty()) << call;
}

TEST(IncludeRules, TheBuildWithoutCudaReachesNoCudaHeader) {
  const std::string kernels = "#include <cuda_runtime.h>\n", nccl = "#include <nccl.h>\n";
  std::map<std::string, std::string> texts = {
      {"core/device/stream.h", "#include \"core/device/cuda_stream.h\"\n#include <string>\n"},
      {"core/device/cuda_stream.h", "#include <vector>\n"},
      {"core/device/cuda/stream.cpp", "#include \"core/device/cuda_stream.h\"\n" + kernels},
      {"core/ops/gemm/gemm_cuda.cpp", "#include \"core/ops/gemm_cuda.cuh\"\n"},
      {"core/ops/gemm_cuda.cuh", kernels},
      {"parallel/comm/nccl/nccl_a.cpp", nccl}};
  EXPECT_THAT(check_cpu_build(texts), IsEmpty());
  texts["core/device/cuda_stream.h"] = kernels;
  EXPECT_THAT(check_cpu_build(texts),
              ElementsAre(HasSubstr("core/device/cuda_stream.h: is part of the build without CUDA, and "
                                    "core/device/cuda_stream.h includes cuda_runtime.h"),
                          HasSubstr("core/device/stream.h: is part of the build without CUDA, and "
                                    "core/device/cuda_stream.h includes cuda_runtime.h")));
  texts["parallel/comm/a.cpp"] = nccl;
  EXPECT_THAT(check_cpu_build(texts), testing::Contains(HasSubstr("parallel/comm/a.cpp includes nccl.h")));
}

TEST(IncludeRules, NothingAboveCoreDeviceAsksWhetherCudaIsBuilt) {
  const std::string asks = "void f() { if (cuda_built()) return; }\n";
  EXPECT_THAT(check_cpu_build({{"core/device/device.cpp", asks}, {"tests/unit/a.cpp", asks}}), IsEmpty());
  EXPECT_THAT(check_cpu_build({{"apps/a.cpp", asks}}),
              ElementsAre(HasSubstr("apps/a.cpp: asks whether CUDA is built")));
}

TEST(IncludeRules, AHeaderThatChangesOftenHasFewReaders) {
  std::map<std::string, std::string> texts = {{"core/model/config.h", ""},
                                              {"apps/all.h", "#include \"core/model/config.h\"\n"},
                                              {"tests/a_test.cpp", "#include \"core/model/config.h\"\n"}};
  for (int i = 0; i < 40; ++i) texts["apps/" + std::to_string(i) + ".cpp"] = "#include \"apps/all.h\"\n";
  EXPECT_THAT(check_readers(texts), IsEmpty());
  texts["apps/one_more.cpp"] = "#include \"core/model/config.h\"\n";
  EXPECT_THAT(check_readers(texts), ElementsAre(HasSubstr("core/model/config.h: 41 sources include it, at most 40")));
}

}  // namespace
}  // namespace megalith::style
