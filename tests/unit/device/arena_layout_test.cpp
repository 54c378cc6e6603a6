// Tightness of the layout of realistic steps: transformer layers, several microbatches, gradients reduced on a second
// stream. One microbatch is in flight, or several as in a pipeline.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "core/memory/arena_layout.h"
#include "tests/support/tier.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

struct Model {
  int layers;
  int microbatches;
  int in_flight;
  std::size_t tokens;
  std::size_t hidden;
};

// Announces the reads and writes of a GPT's forward and backward passes.
class StepRecording {
 public:
  explicit StepRecording(const Model& model)
      : model_(model),
        stash_(static_cast<std::size_t>(model.in_flight), std::vector<Layer>(static_cast<std::size_t>(model.layers))) {
    // 1F1B: the oldest in flight runs backward, then the next one runs forward.
    for (int m = 0; m < model_.microbatches + model_.in_flight; ++m) {
      if (m >= model_.in_flight) backward((m - model_.in_flight) % model_.in_flight);
      if (m < model_.microbatches) forward(m % model_.in_flight);
    }
    compute_.wait(reduced_);
  }

  ArenaPlan plan() const { return plan_arena(timeline_, arena_); }
  std::size_t entries() const { return timeline_.entries().size(); }

 private:
  struct Layer {
    void *x, *norm, *qkv, *attention, *statistics, *middle, *norm2, *fc1, *act;
  };

  void* bytes_per_token(std::size_t bytes, const char* owner) {
    return arena_.allocate(model_.tokens * bytes, MemoryCategory::kActivations, owner);
  }
  void op(Stream& stream, const char* name, std::vector<void*> read, std::vector<void*> written) {
    Access access(name);
    for (void* buffer : read) access.add(buffer, 1, false);
    for (void* buffer : written) access.add(buffer, 1, true);
    stream.announce(access);
  }

  void forward(int column) {
    const std::size_t h = model_.hidden * 2;
    arena_.begin_scope({column, -1, 0});
    void* x = bytes_per_token(h, "embedding");
    op(compute_, "embedding", {}, {x});
    for (int l = 0; l < model_.layers; ++l) {
      arena_.begin_scope({column, l, 0});
      Layer& s = layer(column, l);
      s.x = x;
      s.norm = bytes_per_token(h, "qkv_linear");
      op(compute_, "norm", {x}, {s.norm});
      s.qkv = bytes_per_token(3 * h, "core_attn");
      op(compute_, "qkv", {s.norm}, {s.qkv});
      op(compute_, "rope", {s.qkv}, {s.qkv});
      s.attention = bytes_per_token(h, "attn_proj");
      s.statistics = bytes_per_token(4 * 16, "attn_proj");
      op(compute_, "attention", {s.qkv}, {s.attention, s.statistics});
      void* projected = bytes_per_token(h, "scratch");
      op(compute_, "proj", {s.attention}, {projected});
      s.middle = bytes_per_token(h, "mlp_norm");
      op(compute_, "add", {x, projected}, {s.middle});
      s.norm2 = bytes_per_token(h, "fc1");
      op(compute_, "norm", {s.middle}, {s.norm2});
      s.fc1 = bytes_per_token(4 * h, "act");
      op(compute_, "fc1", {s.norm2}, {s.fc1});
      s.act = bytes_per_token(4 * h, "fc2");
      op(compute_, "gelu", {s.fc1}, {s.act});
      void* fc2 = bytes_per_token(h, "scratch");
      op(compute_, "fc2", {s.act}, {fc2});
      x = bytes_per_token(h, "attn_norm");
      op(compute_, "add", {s.middle, fc2}, {x});
    }
    last_.resize(static_cast<std::size_t>(model_.in_flight));
    last_[static_cast<std::size_t>(column)] = x;
  }

  void backward(int column) {
    const std::size_t h = model_.hidden * 2;
    arena_.begin_scope({column, -1, 1});
    void* logits = bytes_per_token(16 * h, "logits");
    void* last = last_[static_cast<std::size_t>(column)];
    op(compute_, "logits", {last}, {logits});
    op(compute_, "cross_entropy", {logits}, {logits});
    void* dx = bytes_per_token(h, "gradient");
    op(compute_, "dlogits", {logits}, {dx});
    for (int l = model_.layers - 1; l >= 0; --l) dx = backward_layer(column, l, dx);
    op(compute_, "embedding_backward", {dx}, {});
  }

  void* backward_layer(int column, int l, void* dx) {
    const std::size_t h = model_.hidden * 2;
    arena_.begin_scope({column, l, 1});
    const Layer& s = layer(column, l);
    void* dact = bytes_per_token(4 * h, "gradient");
    op(compute_, "fc2_dgrad", {dx}, {dact});
    op(compute_, "fc2_wgrad", {dx, s.act}, {});
    void* dfc1 = bytes_per_token(4 * h, "gradient");
    op(compute_, "gelu_backward", {dact, s.fc1}, {dfc1});
    void* dnorm2 = bytes_per_token(h, "gradient");
    op(compute_, "fc1_dgrad", {dfc1}, {dnorm2});
    op(compute_, "fc1_wgrad", {dfc1, s.norm2}, {});
    void* partial = bytes_per_token(64, "partial sums");
    void* dmiddle = bytes_per_token(h, "gradient");
    op(compute_, "norm_backward", {dnorm2, s.middle, dx}, {dmiddle, partial});
    op(compute_, "norm_reduce", {partial}, {});
    void* dattention = bytes_per_token(h, "gradient");
    op(compute_, "proj_dgrad", {dmiddle}, {dattention});
    op(compute_, "proj_wgrad", {dmiddle, s.attention}, {});
    void* dqkv = bytes_per_token(3 * h, "gradient");
    void* delta = bytes_per_token(64, "scratch");
    op(compute_, "attention_delta", {dattention, s.attention}, {delta});
    op(compute_, "attention_backward", {dattention, s.qkv, s.statistics, delta}, {dqkv});
    op(compute_, "rope_backward", {dqkv}, {dqkv});
    void* dnorm = bytes_per_token(h, "gradient");
    op(compute_, "qkv_dgrad", {dqkv}, {dnorm});
    op(compute_, "qkv_wgrad", {dqkv, s.norm}, {});
    void* result = bytes_per_token(h, "gradient");
    op(compute_, "norm_backward", {dnorm, s.x, dmiddle}, {result});
    reduce(l);
    return result;
  }

  // A bucket's staging buffer lives on the communication stream, until the next bucket's.
  void reduce(int l) {
    void* staging = bytes_per_token(2 * model_.hidden, "bucket");
    compute_.wait(reduced_);
    op(compute_, "pack", {}, {staging});
    compute_.record(ready_);
    comm_.wait(ready_);
    op(comm_, l % 2 == 0 ? "all_reduce" : "reduce_scatter", {staging}, {staging});
    comm_.record(reduced_);
  }

  Layer& layer(int column, int l) { return stash_[static_cast<std::size_t>(column)][static_cast<std::size_t>(l)]; }

  Model model_;
  MemoryPool pool_{DeviceType::kPlan};
  Timeline timeline_;
  Arena arena_{pool_, Arena::Mode::kRecording};
  Stream compute_{DeviceType::kPlan, "compute", {.timeline = &timeline_}};
  Stream comm_{DeviceType::kPlan, "comm", {.timeline = &timeline_}};
  Event ready_{"ready"};
  Event reduced_{"reduced"};
  std::vector<std::vector<Layer>> stash_;  // [column][layer]
  std::vector<void*> last_;                // [column]: the last layer's output
};

void expect_tight(const char* name, const Model& model) {
  const StepRecording step(model);
  const auto begin = std::chrono::steady_clock::now();
  const ArenaPlan plan = step.plan();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  const double ratio = static_cast<double>(plan.peak_bytes) / static_cast<double>(plan.live_bytes);
  std::printf("%-28s %6zu entries %6zu buffers  peak/live %.4f  planned in %.0f ms\n", name, step.entries(),
              plan.slots.size(), ratio, ms);
  EXPECT_GE(ratio, 1.0);
  EXPECT_LE(ratio, 1.2);
}

TEST(ArenaLayout, IsCloseToTheLowerBound) {
  expect_tight("small, 4 layers", {.layers = 4, .microbatches = 4, .in_flight = 1, .tokens = 256, .hidden = 256});
  expect_tight("24 layers, accumulation",
               {.layers = 24, .microbatches = 24, .in_flight = 1, .tokens = 2048, .hidden = 1024});
  expect_tight("8 layers, 4 in flight",
               {.layers = 8, .microbatches = 16, .in_flight = 4, .tokens = 4096, .hidden = 4096});
  expect_tight("48 layers, 8 in flight",
               {.layers = 48, .microbatches = 16, .in_flight = 8, .tokens = 4096, .hidden = 4096});
  expect_tight("odd sizes", {.layers = 5, .microbatches = 3, .in_flight = 2, .tokens = 77, .hidden = 19});
}

bool meet(const LayoutBuffer& a, const LayoutBuffer& b) {
  return std::ranges::any_of(a.lives, [&](const Lifetime& life) {
    return std::ranges::any_of(
        b.lives, [&](const Lifetime& other) { return life.begin <= other.end && other.begin <= life.end; });
  });
}

bool overlap(const LayoutBuffer& a, const LayoutBuffer& b) {
  return meet(a, b) && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

void expect_disjoint(const std::vector<LayoutBuffer>& buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(buffers[i], buffers[j])) << j << " and " << i;
}

// Small examples in which largest first leaves a gap, for any order of equal sizes. A unit has more bytes than a layout
// may lose.
TEST(ArenaLayout, SearchesWhereTheLargestFirstLeavesGaps) {
  struct Example {
    std::size_t live, by_size;
    std::vector<LayoutBuffer> buffers;
  };
  const std::vector<Example> examples = {
      {9, 10, {{4, {{3, 7}}}, {3, {{6, 9}}}, {3, {{3, 4}}}, {2, {{3, 5}}}, {1, {{5, 6}}}}},
      {5, 6, {{3, {{1, 2}}}, {3, {{6, 6}}}, {2, {{1, 3}}}, {3, {{7, 7}}}, {1, {{3, 6}}}}},
      {7, 9, {{4, {{5, 5}}}, {2, {{2, 4}}}, {3, {{4, 5}}}, {4, {{3, 3}}}, {2, {{6, 6}}}}}};
  for (const Example& example : examples) {
    constexpr std::size_t kUnit = 4 << 20;
    std::vector<LayoutBuffer> buffers = example.buffers;
    for (LayoutBuffer& buffer : buffers) buffer.bytes *= kUnit;
    EXPECT_EQ(lay_out(buffers, kUnit * example.live, /*searches=*/false), kUnit * example.by_size);
    EXPECT_EQ(lay_out(buffers, kUnit * example.live, /*searches=*/true), kUnit * example.live);
    expect_disjoint(buffers);
  }
}

struct Crowd {
  std::int64_t lives, longest;  // per buffer; out of 1000
};
// Places the largest first at the lowest free offset, ties in the order of their numbers. Tries all pairs.
std::vector<LayoutBuffer> by_definition(std::vector<LayoutBuffer> buffers) {
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return buffers[i].bytes; });
  std::vector<std::size_t> placed;  // ascending offsets
  for (const std::size_t i : order) {
    std::size_t lowest = 0;
    for (const std::size_t other : placed) {
      if (buffers[other].offset >= lowest + buffers[i].bytes) break;
      const std::size_t end = buffers[other].offset + buffers[other].bytes;
      if (end > lowest && meet(buffers[i], buffers[other])) lowest = end;
    }
    buffers[i].offset = lowest;
    placed.insert(std::ranges::upper_bound(placed, lowest, {}, [&](std::size_t j) { return buffers[j].offset; }), i);
  }
  return buffers;
}

// Few buffers and many, with few and many others alive, with one life each and with several, have different code paths.
TEST(ArenaLayout, IsThatOfAllPairs) {
  if (test::skips_one_thread()) GTEST_SKIP() << test::kRunsElsewhere;
  for (const std::size_t count : {150, 2'100 / test::one_of(2)}) {
    for (const Crowd& crowd : {Crowd{1, 4}, Crowd{1, 900}, Crowd{3, 2}, Crowd{3, 300}}) {
      SCOPED_TRACE(testing::Message() << count << " of " << crowd.lives << " lives of up to " << crowd.longest);
      std::mt19937 random(7);
      std::vector<LayoutBuffer> buffers(count);
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        // Some sizes are equal, and then times in use too.
        buffers[i].bytes = 1000 + (i * 7919) % 97;
        const std::int64_t longest = std::min<std::int64_t>(crowd.longest, count < 1000 ? 900 : 40);
        const std::int64_t length = 1 + static_cast<std::int64_t>(buffers[i].bytes) % longest;
        buffers[i].bytes <<= 12;  // so that gaps count
        for (std::int64_t life = 0; life < crowd.lives; ++life) {
          const std::int64_t part = 1000 / crowd.lives, latest = part - std::min(length, part);
          const std::int64_t begin = life * part + static_cast<std::int64_t>(random()) % (latest + 1);
          buffers[i].lives.push_back({.begin = begin, .end = begin + std::min(length, part) - 1});
        }
      }
      std::ranges::stable_sort(buffers, {}, [](const LayoutBuffer& buffer) { return buffer.lives[0].begin; });
      const std::vector<LayoutBuffer> want = by_definition(buffers);
      lay_out(buffers, /*live_bytes=*/1, /*searches=*/false);
      if (count < 1000) expect_disjoint(buffers);
      for (std::size_t i = 0; i < buffers.size(); ++i) ASSERT_EQ(buffers[i].offset, want[i].offset) << i;
    }
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

double user_seconds() {
  rusage use{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &use), 0);
  return static_cast<double>(use.ru_utime.tv_sec) + 1e-6 * static_cast<double>(use.ru_utime.tv_usec);
}

// Microbatches of a pipeline leave gaps that others fill; the time for that was quadratic in the layers.
TEST(ArenaLayout, TakesTimeInProportionToLayers) {
  if (kSanitized) GTEST_SKIP() << "sanitizers add time";
  const auto planning = [](int layers, int in_flight) {
    const StepRecording step(
        {.layers = layers, .microbatches = 2 * in_flight, .in_flight = in_flight, .tokens = 1024, .hidden = 1024});
    const double before = user_seconds();
    step.plan();
    return user_seconds() - before;
  };
  for (const int in_flight : {1, 4}) {
    const int layers = 800 / in_flight;
    const double some = planning(layers, in_flight), more = planning(4 * layers, in_flight);
    std::printf("%d in flight: %d layers %.3f s, %d layers %.3f s\n", in_flight, layers, some, 4 * layers, more);
    EXPECT_LT(more, 9 * some) << in_flight << " in flight";
  }
}

}  // namespace
}  // namespace megalith
