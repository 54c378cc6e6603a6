// What the runtime itself costs on a GPU: the host's time for one launch, with and without the hazard checker, and a
// graph's replay per node on the host and on the device.
//   cuda_launch_bench [nodes]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/memory/memory_pool.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {
namespace {

constexpr int kRepeats = 21;

template <class Call>
double median_us(Call&& call) {
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bench(int nodes) {
  const CudaFacts facts = cuda_facts(0);
  fmt::print("{}, driver {}, runtime {}; {} launches of a small Add, medians of {}\n", facts.name, facts.driver_version,
             facts.runtime_version, nodes, kRepeats);
  MemoryPool pool(DeviceType::kCuda);
  HazardChecker checker;
  Stream plain(DeviceType::kCuda, "plain");
  Stream checked(DeviceType::kCuda, "checked", {.hazards = &checker});
  const auto tensor = [&](const char* owner) {
    return Tensor(pool.allocate(4096, MemoryCategory::kWorkspace, owner), DType::kFp32, Shape{1024});
  };
  const Add op{.a = tensor("a"), .b = tensor("b"), .y = tensor("y")};
  const auto per_launch = [&](const char* what, double us) { fmt::print("{:<46}{:8.3f} us\n", what, us / nodes); };
  const auto enqueue = [&](Stream& stream) {
    for (int i = 0; i < nodes; ++i) launch(stream, op);
  };
  for (Stream* stream : {&plain, &checked}) {
    enqueue(*stream);
    stream->synchronize();
    std::vector<double> host;
    const double both = median_us([&] {
      const auto start = std::chrono::steady_clock::now();
      enqueue(*stream);
      host.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      stream->synchronize();
    });
    std::sort(host.begin(), host.end());
    const bool hazards = stream == &checked;
    per_launch(hazards ? "launch(), hazard checker on: host" : "launch(): host", host[host.size() / 2]);
    per_launch(hazards ? "launch(), hazard checker on: until done" : "launch(): until done", both);
  }
  Graph graph("bench");
  per_launch("capture and instantiate", [&] {
    const auto start = std::chrono::steady_clock::now();
    graph.begin_capture(plain);
    enqueue(plain);
    graph.end_capture();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }());
  graph.replay(plain);
  plain.synchronize();
  std::vector<double> host;
  const double both = median_us([&] {
    const auto start = std::chrono::steady_clock::now();
    graph.replay(plain);
    host.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    plain.synchronize();
  });
  std::sort(host.begin(), host.end());
  per_launch("replay, per node: host", host[host.size() / 2]);
  per_launch("replay, per node: until done", both);
  fmt::print("{:<46}{:8.3f} us\n", "replay, whole graph: host", host[host.size() / 2]);

  Event event("event");
  fmt::print("{:<46}{:8.3f} us\n", "record and wait on another stream: host", median_us([&] {
                                                                                for (int i = 0; i < 100; ++i) {
                                                                                  plain.record(event);
                                                                                  checked.wait(event);
                                                                                }
                                                                              }) / 100);
  checked.synchronize();
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  try {
    megalith::bench(argc > 1 ? std::max(1, std::atoi(argv[1])) : 350);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_launch_bench: {}\n", error.what());
    return 1;
  }
}
