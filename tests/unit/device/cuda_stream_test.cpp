// GPU behavior: asynchrony, faults of kernels, the driver's errors, pinned memory, and rejections at start.
#include "core/device/cuda_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/device/capture_guard.h"
#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"
#include "core/device/graph.h"
#include "core/memory/host_arena.h"
#include "core/memory/memory_pool.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/cuda_test.h"

namespace megalith {
namespace {

CudaFacts good_facts() {
  return {.index = 0,
          .count = 1,
          .count_error = "",
          .driver_version = 13000,
          .runtime_version = 13000,
          .compute_capability = 90,
          .name = "GPU X"};
}

struct Refusal {
  const char* what;
  void (*spoil)(CudaFacts&);
  std::vector<const char*> parts;
};

TEST(CudaStart, EachReasonThatAGpuCannotBeUsedIsOneLineAndExitCode2) {
  EXPECT_NO_THROW(check(good_facts()));
  const std::vector<Refusal> refusals = {
      {"no driver",
       [](CudaFacts& f) { f.count = 0, f.driver_version = 0, f.count_error = "no CUDA-capable device"; },
       {"no GPU", "no CUDA-capable device", "--device cpu"}},
      {"none visible", [](CudaFacts& f) { f.count = 0; }, {"no GPU", "CUDA_VISIBLE_DEVICES"}},
      {"too few", [](CudaFacts& f) { f.index = 4, f.count = 4; }, {"too few GPUs", "GPU 4", "4 visible"}},
      {"negative", [](CudaFacts& f) { f.index = -1; }, {"too few GPUs", "GPU -1"}},
      {"old driver",
       [](CudaFacts& f) { f.driver_version = 12080, f.count = 0; },
       {"driver is too old", "CUDA 13.0", "CUDA 12.8"}},
      {"old GPU", [](CudaFacts& f) { f.compute_capability = 75; }, {"compute capability 8.0", "7.5 (GPU X)"}},
  };
  for (const Refusal& refusal : refusals) {
    CudaFacts facts = good_facts();
    refusal.spoil(facts);
    EXPECT_EQ(exit_code_of([&] { check(facts); }), ExitCode::kUsage) << refusal.what;
    const std::string message = error_of([&] { check(facts); });
    EXPECT_THAT(message, Not(HasSubstr("\n"))) << refusal.what;
    for (const char* part : refusal.parts) EXPECT_THAT(message, HasSubstr(part)) << refusal.what;
  }
  CudaFacts facts = good_facts();
  facts.driver_version = 13000, facts.runtime_version = 13010;  // within a major version the older driver works
  EXPECT_NO_THROW(check(facts));
}

TEST_F(CudaTest, TheProcessHasOneGpu) {
  select_cuda_device(0);
  const CudaFacts facts = cuda_facts(0);
  EXPECT_GE(facts.compute_capability, 80);
  EXPECT_GE(facts.driver_version / 1000, facts.runtime_version / 1000);
  EXPECT_FALSE(facts.name.empty());
  EXPECT_GT(CudaStream().multiprocessors(), 0);
  EXPECT_EQ(use_cuda_device(), 0);
  EXPECT_EQ(exit_code_of([] { select_cuda_device(1000); }), ExitCode::kUsage);
  const CudaMemory memory = cuda_memory();
  EXPECT_LE(memory.free, memory.total);
  EXPECT_GT(memory.total, std::size_t{1} << 30);
}

TEST_F(CudaTest, DoesNotMakeTheHostWaitAndStreamsRunAtTheSameTime) {
  Stream a(DeviceType::kCuda, "a");
  Stream b(DeviceType::kCuda, "b");
  int* flag = flags(2);
  spin(a, flag, 1);  // until b signals,
  signal(a, flag + 1, 1);
  EXPECT_EQ(read_flag(flag + 1), 0);
  signal(b, flag, 1);  // needs b to run concurrently with a
  b.synchronize();
  a.synchronize();
  EXPECT_EQ(read_flag(flag + 1), 1);
  EXPECT_LT(seconds(), 5);  // no spin gave up
}

TEST_F(CudaTest, AnEventOrdersTwoStreamsAndTheHost) {
  Stream compute(DeviceType::kCuda, "compute");
  Stream comm(DeviceType::kCuda, "comm");
  int* flag = flags(3);
  for (int i = 1; i <= 3; ++i) {  // recording again moves the event
    Event ready("ready");
    spin(compute, flag, i);
    signal(compute, flag + 1, i);
    compute.record(ready);
    EXPECT_TRUE(ready.recorded());
    comm.wait(ready);
    copy_by_kernel(comm, flag + 2, flag + 1);
    comm.record(ready);
    EXPECT_EQ(read_flag(flag + 2), i - 1);
    write_flag(flag, i);
    comm.synchronize_host(ready);
    EXPECT_EQ(read_flag(flag + 2), i);
  }
}

TEST_F(CudaTest, AnEventNeverRecordedOrdersNothing) {
  Stream stream(DeviceType::kCuda, "compute");
  Event never("never");
  int* flag = flags(1);
  stream.wait(never);
  stream.synchronize_host(never);
  signal(stream, flag, 1);
  stream.synchronize();
  EXPECT_EQ(read_flag(flag), 1);
}

TEST_F(CudaTest, ACpuStreamAndACudaStreamCannotShareAnEvent) {
  Stream cpu(DeviceType::kCpu, "cpu");
  Stream cuda(DeviceType::kCuda, "cuda");
  Event of_cpu("of cpu");
  Event of_cuda("of cuda");
  cpu.record(of_cpu);
  cuda.record(of_cuda);
  EXPECT_THAT(error_of([&] { cuda.wait(of_cpu); }), HasSubstr("a CPU stream recorded"));
  EXPECT_THAT(error_of([&] { cpu.wait(of_cuda); }), HasSubstr("a CUDA stream recorded"));
}

TEST_F(CudaTest, AKernelsFaultSurfacesOnceWithTheOpsOwnError) {
  Stream stream(DeviceType::kCuda, "compute");
  Stream other(DeviceType::kCuda, "other");
  Event after("after");
  const auto expect_fault = [](auto&& call, const char* got) {
    const std::string message = error_of(call);
    EXPECT_THAT(message, AllOf(HasSubstr("label of row 1: expected at most 7, got"), HasSubstr(got)));
  };
  fault(stream, 9, 1000);  // only one of many threads reports, in one piece
  expect_fault([&] { stream.synchronize(); }, "got 9 18 27 36");
  EXPECT_NO_THROW(stream.synchronize());
  fault(stream, 11, 1);
  EXPECT_EQ(exit_code_of([&] { stream.synchronize(); }), ExitCode::kFormat);
  fault(stream, 12, 1);
  stream.record(after);
  expect_fault([&] { other.synchronize_host(after); }, "got 12");
  EXPECT_NO_THROW(stream.synchronize());

  Graph graph("with a fault");
  graph.begin_capture(stream);
  stream.announce(Access("bad"));
  fault(stream, 13, 1);
  graph.end_capture();
  for (int i = 0; i < 2; ++i) {
    graph.replay(other);
    expect_fault([&] { other.synchronize(); }, "got 13");
  }
}

TEST_F(CudaTest, TheDriversOwnTextIsInTheMessage) {
  Stream stream(DeviceType::kCuda, "compute");
  EXPECT_THAT(error_of([&] { bad_launch(stream); }), AllOf(HasSubstr("cudaGetLastError"), HasSubstr("cudaError")));
  EXPECT_EQ(exit_code_of([&] { bad_launch(stream); }), ExitCode::kInternal);
  EXPECT_NO_THROW(nothing(stream));  // the error is not reported twice
  stream.synchronize();
}

TEST_F(CudaTest, OutOfDeviceMemoryIsExitCode6WithTheOwners) {
  MemoryPool pool(DeviceType::kCuda);
  pool.allocate(1 << 20, MemoryCategory::kParameters, "weights");
  void* cached = pool.allocate(4 << 20, MemoryCategory::kWorkspace, "scratch");
  pool.free(cached);
  const auto too_much = [&] { pool.allocate(std::size_t{1} << 46, MemoryCategory::kOptimizer, "moments"); };
  EXPECT_EQ(exit_code_of(too_much), ExitCode::kOutOfMemory);
  EXPECT_THAT(error_of(too_much), AllOf(HasSubstr("for moments on the cuda device"), HasSubstr("weights (parameters)"),
                                        HasSubstr("--micro-batch-size")));
  EXPECT_EQ(pool.reserved_bytes(), std::size_t{1} << 20) << "the cached block was to be given back first";
  EXPECT_NO_THROW(pool.allocate(1 << 20, MemoryCategory::kOther, "small"));
}

TEST_F(CudaTest, ThePoolGivesAlignedBlocksOutAgain) {
  MemoryPool pool(DeviceType::kCuda);
  Stream stream(DeviceType::kCuda, "compute");
  for (std::size_t bytes : {0, 1, 255, 257, (2 << 20) + 1}) {
    void* address = pool.allocate(bytes, MemoryCategory::kWorkspace, "x");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u) << bytes;
    std::vector<char> host(bytes, 5), back(bytes);
    copy_from_host(stream, address, host.data(), bytes);
    copy_to_host(stream, back.data(), address, bytes);
    stream.synchronize();
    EXPECT_EQ(back, host);
  }
  void* first = pool.allocate(8192, MemoryCategory::kWorkspace, "a");
  pool.free(first);
  const std::int64_t before = pool.system_allocations();
  EXPECT_EQ(pool.allocate(8000, MemoryCategory::kWorkspace, "b"), first);
  EXPECT_EQ(pool.system_allocations(), before);
}

// Small blocks, and those whose pages several threads touch first.
TEST_F(CudaTest, CopiesOfPinnedMemoryDoNotMakeTheHostWait) {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{48} << 20}) {
    SCOPED_TRACE(bytes);
    Stream stream(DeviceType::kCuda, "compute");
    MemoryPool pool(DeviceType::kCuda);
    HostArena arena(DeviceType::kCuda, 2 * bytes, "staging");
    EXPECT_TRUE(arena.pinned());
    int* flag = flags(1);
    char* up = arena.allocate_as<char>(bytes);
    char* down = arena.allocate_as<char>(bytes);
    EXPECT_EQ(arena.used_bytes(), 2 * bytes);
    EXPECT_EQ(exit_code_of([&] { arena.allocate(1); }), ExitCode::kOutOfMemory);
    for (std::size_t i = 0; i < bytes; ++i) up[i] = static_cast<char>(i % 127), down[i] = 0;
    void* device = pool.allocate(bytes, MemoryCategory::kWorkspace, "x");
    const auto start = std::chrono::steady_clock::now();
    spin(stream, flag, 1);
    copy_from_host(stream, device, up, bytes);
    copy_to_host(stream, down, device, bytes);
    EXPECT_EQ(down[5], 0);  // the host is here although the stream still spins
    write_flag(flag, 1);
    stream.synchronize();
    EXPECT_EQ(std::memcmp(up, down, bytes), 0);
    int* const last = reinterpret_cast<int*>(up + bytes) - 1;
    *last = 12345;  // kernels read and write it by the host's address
    copy_by_kernel(stream, reinterpret_cast<int*>(down), last);
    stream.synchronize();
    EXPECT_EQ(*reinterpret_cast<int*>(down), 12345);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 5);
  }
}

TEST_F(CudaTest, LibraryHandlesAreMadeOnceAlsoUnderCapture) {
  Stream stream(DeviceType::kCuda, "compute");
  Graph graph("first use");
  graph.begin_capture(stream);
  CudaStream& cuda = backend(stream);
  const void* const blas = cuda.blas_lt();
  const void* const dnn = cuda.dnn();
  EXPECT_NO_THROW(graph.end_capture());
  EXPECT_EQ(cuda.blas_lt(), blas);
  EXPECT_EQ(cuda.dnn(), dnn);
  EXPECT_GT(cuda.multiprocessors(), 0);
}

}  // namespace
}  // namespace megalith
