// Copies to the host at the tail of captured graphs of verbs that read sharded units, with the units' hooks around
// each replay: the next unit comes into the slot while the tail still runs, and what left the device comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/ops/elementwise/elementwise.h"
#include "fsdp/sharded_units.h"
#include "parallel/pipeline_parallel/segment_runner.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

constexpr int kRanks = 2, kLayers = 3;
constexpr std::int64_t kElements = 128 * kRanks;

Tensor make(MemoryPool& pool) {
  return {pool.allocate(kElements * sizeof(float), MemoryCategory::kOther, "test"), DType::kFp32, {kElements}};
}

// hidden = input + weights of its unit, into memory of its own.
class AddWeights : public Segment {
 public:
  AddWeights(const ParameterUnit& unit, const Tensor& hidden) : unit_(unit), hidden_(hidden) {}
  TensorList forward(const Context& ctx, const Microbatch&, const TensorList& inputs, Stash&) const override {
    launch(ctx.compute, Add{.a = inputs[0], .b = unit_.weights, .y = hidden_});
    return {hidden_};
  }
  TensorList backward_data(const Context&, const Microbatch&, const TensorList& gradients, Stash&) const override {
    return gradients;
  }
  void backward_weight(const Context&, const Microbatch&, Stash&) const override {}

 private:
  const ParameterUnit& unit_;
  Tensor hidden_;
};

// Three units of one slot.
struct Rank {
  explicit Rank(Communicator& world) : reduce_group(world.duplicate("reduce")) {
    for (int u = 0; u < kLayers; ++u) {
      parameters.begin_unit("unit " + std::to_string(u));
      parameters.add({.parts = {{.name = "weight " + std::to_string(u)}}, .shape = {kElements / 2, 2}});
      ParameterUnit& unit = parameters.units().back();
      unit.shard = {.rank = world.rank(), .ranks = kRanks};
      unit.resident_weights = unit.resident_gradients = false;
    }
    parameters.allocate(pool, DType::kFp32);
    for (ParameterUnit& unit : parameters.units())
      std::fill_n(unit.weight_shard.as<float>(), unit.weight_shard.numel(),
                  10.0f * static_cast<float>(world.rank() + 1));
    units = std::make_unique<ShardedUnits>(parameters, assign_slots(parameters.units(), {.weights = 1, .gradients = 1}),
                                           std::vector<UnitGroups>{{.gather = world, .reduce = *reduce_group}},
                                           UnitStreams{.compute = compute, .gather = gather, .reduce = reduce}, pool, 0,
                                           /*poison=*/true);
    std::vector<SegmentRunner::Entry> entries;
    for (int u = 0; u < kLayers; ++u) {
      hidden.push_back(make(pool));
      back.push_back(make(pool));
      segments.push_back(std::make_unique<AddWeights>(parameters.units()[static_cast<std::size_t>(u)], hidden.back()));
      entries.push_back({.name = "layer " + std::to_string(u), .segment = segments.back().get()});
    }
    runner = std::make_unique<SegmentRunner>(ctx, std::move(entries));
    for (int u = 0; u < kLayers; ++u) {
      runner->hooks(u).add(HookPoint::kPreForward, [this, u](const HookContext&) { units->wait_unshard(u); });
      runner->hooks(u).add(HookPoint::kPostForward, [this, u](const HookContext&) { units->reshard(u); });
    }
  }
  ~Rank() {
    for (Stream* stream : {&side, &compute, &gather, &reduce, &compute}) stream->synchronize();
  }

  static Action forward(int layer) { return {.kind = ActionKind::kForward, .segment = layer}; }

  // Behind the event the copy, and before it what holds it up.
  void capture(int layer) {
    const auto at = static_cast<std::size_t>(layer);
    graphs.push_back(std::make_unique<Graph>("layer " + std::to_string(layer)));
    resumes.push_back(std::make_unique<Event>("layer is done"));
    host.emplace_back(kElements);
    graphs.back()->begin_capture(compute);
    runner->run_verb(forward(layer));
    compute.record_external(*resumes.back());
    Access hold("hold");
    hold.add(host[at].data(), sizeof(float), true);
    hold.set_copy();
    compute.announce(hold);
    compute.cpu()->enqueue([this] { tail.wait(); });
    copy_to_host(compute, host[at].data(), hidden[at].data, hidden[at].bytes());
    graphs.back()->end_capture();
  }

  // Declared before the streams, which are empty when they go.
  std::unique_ptr<Communicator> reduce_group;
  HazardChecker hazards;
  MemoryPool pool{DeviceType::kCpu};
  Arena arena{pool, Arena::Mode::kUnplanned};
  ParameterStore parameters;
  std::vector<Tensor> hidden, back;
  std::vector<std::vector<float>> host;
  std::shared_future<void> tail;
  Stream compute{DeviceType::kCpu, "compute", {.hazards = &hazards}},
      gather{DeviceType::kCpu, "gather", {.hazards = &hazards}},
      reduce{DeviceType::kCpu, "reduce", {.hazards = &hazards}},
      side{DeviceType::kCpu, "offload", {.hazards = &hazards}};
  const Context ctx{.compute = compute, .arena = arena};
  std::unique_ptr<ShardedUnits> units;
  std::vector<std::unique_ptr<AddWeights>> segments;
  std::unique_ptr<SegmentRunner> runner;
  std::vector<std::unique_ptr<Event>> resumes;
  std::vector<std::unique_ptr<Graph>> graphs;
};

void run_step(Rank& rank, const Tensor& input) {
  std::promise<void> latch;
  rank.tail = latch.get_future().share();
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    rank.units->unshard(layer);
    rank.runner->run_hooks(HookPoint::kPreForward, Rank::forward(layer), Phase::kReplay);
    rank.graphs[at]->replay_beside(rank.compute, rank.side, *rank.resumes[at]);
    rank.runner->run_hooks(HookPoint::kPostForward, Rank::forward(layer), Phase::kReplay);
    if (layer > 0) continue;
    rank.units->unshard(1);  // into the slot that layer 0 has read, while its copy is held up
    rank.gather.synchronize();
    EXPECT_EQ(rank.host[0][0], 0);
    rank.units->wait_unshard(1);
    rank.units->reshard(1);
    latch.set_value();
  }
  // All have left: their memory is another's, and they come back elsewhere.
  Event left("all have left"), here("all are back");
  rank.side.record(left);
  rank.compute.wait(left);
  for (const Tensor& hidden : rank.hidden) launch(rank.compute, Fill{.x = hidden, .value = std::nan("")});
  for (std::size_t layer = 0; layer < kLayers; ++layer)
    copy_from_host(rank.side, rank.back[layer].data, rank.host[layer].data(), rank.back[layer].bytes());
  rank.side.record(here);
  rank.compute.wait(here);
  launch(rank.compute, Add{.a = rank.back[0], .b = rank.back[2], .y = input});
  rank.compute.synchronize();
}

TEST(TailCopies, OfGraphsThatReadShardedUnits) {
  ThreadWorld world(kRanks, std::chrono::seconds(30));
  world.run([&](Communicator& group) {
    Rank rank(group);
    const AbortOnUnwind abort(group);
    const Tensor input = make(rank.pool);
    launch(rank.compute, Fill{.x = input, .value = 1});
    rank.runner->begin(0, {});
    rank.runner->set_inputs(0, {input});
    for (int layer = 0; layer < kLayers; ++layer) {
      rank.units->unshard(layer);
      rank.runner->run_hooks(HookPoint::kPreForward, Rank::forward(layer), Phase::kCaptureAhead);
      rank.capture(layer);
      rank.runner->run_hooks(HookPoint::kPostForward, Rank::forward(layer), Phase::kCaptureAhead);
    }
    float low = 1, high = 1;  // elements of rank 0's shard and of rank 1's
    for (int step = 0; step < 3; ++step) {
      for (std::vector<float>& host : rank.host) std::ranges::fill(host, 0.0f);
      run_step(rank, input);
      // Layer 0 has added its own weights, layer 2 those of three layers.
      low = 2 * low + 4 * 10;
      high = 2 * high + 4 * 20;
      EXPECT_EQ(input.as<float>()[0], low);
      EXPECT_EQ(input.as<float>()[kElements - 1], high);
    }
    EXPECT_EQ(rank.hazards.count(), 0);
    EXPECT_EQ(rank.units->gathers(), kLayers + 3 * (kLayers + 1));
  });
}

}  // namespace
}  // namespace megalith
