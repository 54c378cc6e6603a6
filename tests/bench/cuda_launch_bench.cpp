// Cost of the runtime itself on a GPU. It measures the host's time for one launch, with and without the hazard checker,
// and a graph's replay per node on the host and on the device.
//   cuda_launch_bench [nodes]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/memory/memory_pool.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"

namespace megalith {
namespace {

constexpr int kRepeats = 21;

double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Until `enqueue` returns, and until its work on the stream is done.
struct Medians {
  double host_us = 0, done_us = 0;
};
template <class Enqueue>
Medians medians_of(Stream& stream, Enqueue&& enqueue) {
  std::vector<double> host, done;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    host.push_back(us_since(start));
    stream.synchronize();
    done.push_back(us_since(start));
  }
  return {.host_us = median(std::move(host)), .done_us = median(std::move(done))};
}

void print(const char* what, double us) { fmt::print("{:<46}{:8.3f} us\n", what, us); }

class LaunchBench {
 public:
  explicit LaunchBench(int nodes)
      : nodes_(nodes),
        pool_(DeviceType::kCuda),
        plain_(DeviceType::kCuda, "plain"),
        checked_(DeviceType::kCuda, "checked", {.hazards = &checker_}),
        op_{.a = tensor("a"), .b = tensor("b"), .y = tensor("y")} {}

  void launches() {
    for (Stream* stream : {&plain_, &checked_}) {
      enqueue(*stream);
      stream->synchronize();
      const Medians us = medians_of(*stream, [&] { enqueue(*stream); });
      const bool hazards = stream == &checked_;
      print(hazards ? "launch(), hazard checker on: host" : "launch(): host", us.host_us / nodes_);
      print(hazards ? "launch(), hazard checker on: until done" : "launch(): until done", us.done_us / nodes_);
    }
  }

  void replays() {
    Graph graph("bench");
    const auto start = std::chrono::steady_clock::now();
    graph.begin_capture(plain_);
    enqueue(plain_);
    graph.end_capture();
    print("capture and instantiate", us_since(start) / nodes_);
    graph.replay(plain_);
    plain_.synchronize();
    const Medians us = medians_of(plain_, [&] { graph.replay(plain_); });
    print("replay, per node: host", us.host_us / nodes_);
    print("replay, per node: until done", us.done_us / nodes_);
    print("replay, whole graph: host", us.host_us);
  }

  void waits() {
    constexpr int kWaits = 100;
    Event event("event");
    std::vector<double> times;
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int j = 0; j < kWaits; ++j) {
        plain_.record(event);
        checked_.wait(event);
      }
      times.push_back(us_since(start));
    }
    print("record and wait on another stream: host", median(std::move(times)) / kWaits);
    checked_.synchronize();
  }

 private:
  Tensor tensor(const char* owner) {
    return {pool_.allocate(4096, MemoryCategory::kWorkspace, owner), DType::kFp32, Shape{1024}};
  }
  void enqueue(Stream& stream) const {
    for (int i = 0; i < nodes_; ++i) launch(stream, op_);
  }

  int nodes_;
  MemoryPool pool_;
  HazardChecker checker_;
  Stream plain_, checked_;
  Add op_;
};

void bench(int nodes) {
  const CudaFacts facts = cuda_facts(0);
  fmt::print("{}, driver {}, runtime {}; {} launches of a small Add, medians of {}\n", facts.name, facts.driver_version,
             facts.runtime_version, nodes, kRepeats);
  LaunchBench bench(nodes);
  bench.launches();
  bench.replays();
  bench.waits();
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
