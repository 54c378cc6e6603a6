// The calls of golden messages: the library used in ways that it must refuse.
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "apps/flags/flags.h"
#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/train_state.h"
#include "core/device/capture_guard.h"
#include "core/device/graph.h"
#include "core/device/stream.h"
#include "core/instruments/timeline.h"
#include "core/layers/hooks.h"
#include "core/layers/stash.h"
#include "core/memory/arena.h"
#include "core/memory/host_arena.h"
#include "core/memory/memory_pool.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/norm/norm.h"
#include "core/ops/op.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/comm/single_communicator.h"
#include "parallel/data_parallel/gradient_reducer.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/golden_messages.h"

namespace megalith::test {

namespace {

using Words = std::vector<std::string>;
using Calls = std::map<std::string, GoldenCall>;

// A stream that captures, with what an op needs.
struct Capture {
  Capture() { graph.begin_capture(compute); }
  ~Capture() { graph.abort_capture(); }
  void op(Stream& stream, const char* name) {
    Access access(name);
    stream.announce(access);
    stream.cpu()->enqueue([] {});
  }

  CaptureGuard guard;
  Stream compute{DeviceType::kCpu, "compute", Instruments{.captures = &guard}};
  Stream comm{DeviceType::kCpu, "comm", Instruments{.captures = &guard}};
  Graph graph{"layer 3 forward"};
};

void add_graphs(Calls& calls) {
  calls["graph.synchronize"] = [](const Words&) {
    Capture capture;
    capture.op(capture.compute, "gemm");
    capture.compute.synchronize();
  };
  calls["graph.allocate"] = [](const Words&) {
    MemoryPool pool(DeviceType::kCpu);
    Capture capture;
    pool.set_capture_guard(&capture.guard);
    pool.allocate(4096, MemoryCategory::kWorkspace, "gemm scratch");
  };
  calls["graph.not_joined"] = [](const Words&) {
    Capture capture;
    Event fork("fork");
    capture.compute.record(fork);
    capture.comm.wait(fork);
    capture.graph.end_capture();
  };
  calls["graph.event_outside"] = [](const Words&) {
    Event event("loss ready");
    Stream other(DeviceType::kCpu, "other");
    other.record(event);
    Capture capture;
    capture.compute.wait(event);
  };
  calls["graph.capture_twice"] = [](const Words&) {
    Capture capture;
    Graph second("layer 4 forward");
    second.begin_capture(capture.compute);
  };
  calls["graph.empty_replay"] = [](const Words&) {
    Stream stream(DeviceType::kCpu, "compute");
    Graph("layer 3 forward").replay(stream);
  };
  calls["graph.replay_in_capture"] = [](const Words&) {
    Capture capture;
    Graph second("layer 4 forward");
    Stream stream(DeviceType::kCpu, "other");
    second.begin_capture(stream);
    second.end_capture();
    second.replay(capture.compute);
  };
  calls["graph.unannounced"] = [](const Words&) {
    Capture capture;
    capture.op(capture.compute, "gemm");
    capture.compute.cpu()->enqueue([] {});
  };
}

void add_layers(Calls& calls) {
  calls["stash.missing"] = [](const Words&) { Stash().at(2, "hidden"); };
  calls["stash.dropped"] = [](const Words&) {
    SlotPolicies policies{};
    policies[static_cast<std::size_t>(SlotKind::kFc2)] = StashPolicy::kRecompute;
    float value = 0;
    Stash stash(policies);
    stash.save(1, SlotKind::kFc2, Tensor(&value, DType::kFp32, {1}));
    stash.at(1, "activation");
  };
  calls["stash.slot"] = [](const Words&) {
    Stash stash;
    stash[8] = Tensor();
  };
  calls["hook.throws"] = [](const Words&) {
    HookTable hooks;
    hooks.add(HookPoint::kPreWeight, [](const HookContext&) { throw std::runtime_error("no pages left"); });
    hooks.run(HookPoint::kPreWeight, {.segment = "layer 3 mlp", .microbatch = 7});
  };
  calls["hook.fails"] = [](const Words&) {
    HookTable hooks;
    hooks.add(HookPoint::kPostForward, [](const HookContext&) {
      fail(
          {.code = ExitCode::kCommunication, .subject = "unshard of layer 3", .got = "no answer", .show_place = false});
    });
    hooks.run(HookPoint::kPostForward, {.segment = "layer 3 mlp", .microbatch = 7});
  };
  const auto norm = [](const Shape& weight, DType dtype) {
    std::array<float, 32> memory{};
    const Tensor x(memory.data(), DType::kFp32, {2, 4});
    check(RmsNormForward{.x = x,
                         .weight = Tensor(memory.data() + 8, dtype, weight),
                         .y = Tensor(memory.data() + 16, DType::kFp32, {2, 4}),
                         .rstd = Tensor(memory.data() + 24, DType::kFp32, {2})});
  };
  calls["op.shape"] = [=](const Words&) { norm({5}, DType::kFp32); };
  calls["op.dtype"] = [=](const Words&) { norm({4}, DType::kBf16); };
  calls["op.missing"] = [](const Words&) { check(RmsNormForward{}); };
}

void add_memory(Calls& calls) {
  calls["memory.limit"] = [](const Words&) {
    MemoryPool pool(DeviceType::kCpu, 1 << 20);
    pool.allocate(1 << 19, MemoryCategory::kActivations, "fc1");
    pool.allocate(1 << 20, MemoryCategory::kActivations, "fc2");
  };
  calls["memory.host"] = [](const Words&) {
    HostArena arena(DeviceType::kCpu, 1024, "offload");
    arena.allocate(2048);
  };
  calls["memory.unplanned"] = [](const Words&) {
    MemoryPool pool(DeviceType::kCpu);
    Arena arena(pool, Arena::Mode::kPlanned);
    ArenaPlan plan;
    plan.slots[{}] = {.offset = 0, .bytes = 256};
    plan.peak_bytes = 256;
    arena.use(plan);
    arena.begin_scope({});
    arena.allocate(512, MemoryCategory::kActivations, "hidden");
  };
  calls["memory.not_joined"] = [](const Words&) {
    Timeline timeline;
    Stream compute(DeviceType::kPlan, "compute", {.timeline = &timeline});
    Stream comm(DeviceType::kPlan, "comm", {.timeline = &timeline});
    MemoryPool pool(DeviceType::kPlan);
    Arena arena(pool, Arena::Mode::kRecording);
    Access access("all_reduce");
    comm.announce(access);
    plan_arena(timeline, arena);
  };
}

template <class Body>
GoldenCall with_group(Body body) {
  return [body](const Words&) {
    std::array<float, 8> memory{};
    PlanCommunicator group("dp", {.rank = 1, .size = 3});
    Timeline timeline;
    Stream stream(DeviceType::kPlan, "comm", {.timeline = &timeline});
    body(group, stream, Tensor(memory.data(), DType::kFp32, {8}));
  };
}

void add_groups(Calls& calls) {
  using Group = PlanCommunicator;
  calls["group.self"] =
      with_group([](Group& g, Stream& s, const Tensor& x) { launch(s, Send{.group = g, .buffer = x, .peer = 1}); });
  calls["group.rank"] = with_group(
      [](Group& g, Stream& s, const Tensor& x) { launch(s, Broadcast{.group = g, .buffer = x, .root = 3}); });
  calls["group.parts"] =
      with_group([](Group& g, Stream& s, const Tensor& x) { launch(s, AllGather{.group = g, .in = x, .out = x}); });
  calls["group.multiple"] =
      with_group([](Group& g, Stream& s, const Tensor& x) { launch(s, AllToAll{.group = g, .in = x, .out = x}); });
  calls["group.dtype"] = with_group([](Group& g, Stream& s, const Tensor& x) {
    launch(s, AllReduce{.group = g, .buffer = Tensor(x.data, DType::kUint8, {4})});
  });
  calls["group.none"] =
      with_group([](Group& g, Stream& s, const Tensor&) { launch(s, AllReduce{.group = g, .buffer = Tensor()}); });
  calls["group.counts"] = with_group([](Group& g, Stream& s, const Tensor& x) {
    const std::vector<std::int64_t> counts = {1, 1};
    launch(s, AllToAll{.group = g, .in = x, .out = x, .in_rows = counts, .out_rows = counts});
  });
  calls["group.without_me"] = with_group([](Group& g, Stream&, const Tensor&) {
    const std::array<int, 2> ranks = {0, 2};
    g.subgroup(ranks, "tp");
  });
  calls["group.split"] = with_group([](Group& g, Stream&, const Tensor&) { g.split(0, 0, "tp"); });
  calls["group.other_call"] = [](const Words&) {
    ThreadWorld(2).run([](Communicator& world) {
      std::array<float, 4> memory{};
      Stream stream(DeviceType::kCpu, "comm");
      const AbortOnUnwind abort(world);
      launch(stream,
             AllReduce{.group = world, .buffer = Tensor(memory.data(), DType::kFp32, {world.rank() == 0 ? 4 : 3})});
      stream.synchronize();
    });
  };
  calls["mesh"] = [](const Words& sizes) {
    make_mesh_sizes({.world_size = std::stoll(sizes.at(0)),
                     .tensor_model_parallel_size = std::stoll(sizes.at(1)),
                     .pipeline_model_parallel_size = std::stoll(sizes.at(2)),
                     .expert_model_parallel_size = std::stoll(sizes.at(3))});
  };
  const auto reducer = [](std::vector<int> buckets) {
    std::array<float, 8> memory{};
    SingleCommunicator group("dp");
    Stream compute(DeviceType::kCpu, "compute");
    Stream comm(DeviceType::kCpu, "comm");
    GradientReducer gradients(
        group, {.compute = compute, .communication = comm},
        {{Tensor(memory.data(), DType::kFp32, {4})}, {Tensor(memory.data() + 4, DType::kFp32, {4})}});
    for (const int bucket : buckets) gradients.reduce(bucket);
    gradients.finish();
  };
  calls["reducer.twice"] = [=](const Words&) { reducer({0, 0}); };
  calls["reducer.missing"] = [=](const Words&) { reducer({0}); };
}

void add_schedules(Calls& calls) {
  const auto damaged = [](void (*damage)(std::vector<Action>&)) {
    const ChunkSegments segments = {2};
    const ReducePoints points{.segments_of_bucket = {{0, 1}}};
    std::vector<Action> step =
        lower_training_step(make_schedule(ScheduleKind::k1F1B, 1, 1, 2).stages[0], segments, points);
    damage(step);
    verify(step, segments, points);
  };
  calls["actions.missing"] = [=](const Words&) { damaged([](std::vector<Action>& step) { step.pop_back(); }); };
  calls["actions.twice"] = [=](const Words&) {
    damaged([](std::vector<Action>& step) { step.push_back(step.back()); });
  };
  calls["actions.order"] = [=](const Words&) {
    damaged([](std::vector<Action>& step) {
      const auto forward = std::find_if(
          step.begin(), step.end(), [](const Action& a) { return a.kind == ActionKind::kForward && a.segment == 0; });
      std::swap(*forward, *(forward + 1));
    });
  };
}

// Texts of files, given in the case.
void add_files(Calls& calls) {
  calls["safetensors"] = [](const Words& w) {
    parse_safetensors_header(w.at(0), std::stoull(w.at(1)), "m.safetensors");
  };
  calls["safetensors.file"] = [](const Words& w) { read_safetensors_header(Directory::open(".").open_file(w.at(0))); };
  calls["manifest"] = [](const Words& w) { manifest_from_text(w.at(0), "manifest.json"); };
  // A manifest whose hash fits whatever its body says.
  calls["manifest.sealed"] = [](const Words& w) {
    manifest_from_text(w.at(0) + ",\n\"manifest_xxh3_128\":\"" + to_hex(hash_of(w.at(0))) + "\"}\n", "manifest.json");
  };
  calls["state"] = [](const Words& w) { train_state_from_json(w.at(0), "state.json"); };
  calls["state.with"] = [](const Words& w) {  // a valid one with one text replaced
    std::string text = to_json({});
    const std::size_t at = text.find(w.at(0));
    require(at != std::string::npos, "the state has that text");
    text.replace(at, w[0].size(), w.at(1));
    train_state_from_json(text, "state.json");
  };
  calls["checkpoint.config"] = [](const Words& w) {
    std::map<std::string, std::string> config = config_of(train_options({}));
    config[w.at(0)] = w.at(1);
    options_from_config(App::kTrain, config);
  };
  const auto save = [](const std::string& name, const Slice& slice, std::size_t bytes) {
    std::array<std::byte, 64> memory{};
    const SaveResult result = save_checkpoint({.directory = "kept",
                                               .state = {.step = 1},
                                               .shards = {{.name = name,
                                                           .dtype = DType::kFp32,
                                                           .shape = {4},
                                                           .slice = slice,
                                                           .data = std::span(memory).first(bytes)}}});
    throw Error(ExitCode::kInternal, result.message);  // as the trainer tells it
  };
  calls["save.cover"] = [=](const Words&) { save("param/w", Slice::range(0, 2), 8); };
  calls["save.bytes"] = [=](const Words&) { save("param/w", Slice::range(0, 4), 8); };
  calls["save.name"] = [=](const Words&) { save("param/a b", Slice::range(0, 4), 16); };
  calls["load.tensors"] = [=](const Words&) {
    std::array<std::byte, 16> memory{};
    save_checkpoint({.directory = "kept",
                     .state = {.step = 1},
                     .shards = {{.name = "param/w", .shape = {4}, .slice = Slice::range(0, 4), .data = memory}}});
    const std::optional<LoadedCheckpoint> loaded = find_checkpoint({.directory = "kept"});
    const std::vector<TensorSpec> wanted = {{"param/v", DType::kFp32, {4}}, {"param/w", DType::kFp32, {5}}};
    loaded.value().check_tensors(wanted);
  };
}

}  // namespace

const std::map<std::string, GoldenCall>& golden_calls() {
  static const Calls kCalls = [] {
    Calls calls;
    add_graphs(calls);
    add_layers(calls);
    add_memory(calls);
    add_groups(calls);
    add_schedules(calls);
    add_files(calls);
    return calls;
  }();
  return kCalls;
}

}  // namespace megalith::test
