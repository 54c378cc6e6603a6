#include "tests/unit/moe/rank_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "core/model/config.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/download.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith::test {

namespace {

constexpr std::int64_t kLength = 4;
constexpr std::uint64_t kSeed = 7;

ModelConfig config_of(const RankLayerCase& test) {
  ModelConfig config{.num_layers = test.layers, .hidden_size = kRankLayerHidden, .init_method_std = 0.5};
  config.moe = test.moe;
  test.kind.apply(config);
  return config;
}

class RankLayer {
 public:
  RankLayer(const RankLayerCase& test, Communicator& group, const Instruments& instruments)
      : test_(test),
        waits_(*instruments.waits),
        config_(config_of(test)),
        group_(group),
        pool_(DeviceType::kCpu),
        compute_(DeviceType::kCpu, "compute", instruments),
        rows_(DeviceType::kCpu, "rows of experts", instruments),
        guard_(group),
        arena_(pool_, Arena::Mode::kUnplanned),
        ctx_{.compute = compute_, .arena = arena_, .seed = kSeed} {
    if (group.size() > 1) {
      dispatcher_.emplace(group, rows_, Dispatcher::Options{.way = test.way, .copies = test.copies});
    }
    store_.begin_unit("layer");
    const Norm norm(store_, {.name = "norm", .size = kRankLayerHidden, .input_kind = SlotKind::kMlpNorm});
    const MoeOptions options{.experts = {.rank = group.rank() / test.copies,
                                         .ranks = group.size() / test.copies,
                                         .column_rank = group.rank() % test.copies,
                                         .column_ranks = test.copies},
                             .dispatcher = dispatcher_ ? &*dispatcher_ : nullptr,
                             .shared_expert_overlap = test.overlap};
    segments_ = moe_factory(options)({.store = store_,
                                      .rows = one_rank_,
                                      .config = config_,
                                      .layer = test.layers - 1,
                                      .norm = norm,
                                      .dropout = {.p = 0.1f},
                                      .recompute_shared = test.recompute_shared});
    store_.allocate(pool_, test.dtype, DType::kFp32);
    stashes_.resize(segments_.size());
    for (Stash& stash : stashes_) stash.set_layer(layer_);
    make_microbatch();
  }

  void run() {
    if (!test_.replay) {
      fill(test_.seed);
      forward_and_back();
    } else {
      Graph graph("layer");
      graph.begin_capture(compute_);
      forward_and_back();
      graph.end_capture();
      for (const int seed : {test_.seed + 1, test_.seed}) {
        fill(seed);
        graph.replay(compute_);
      }
      compute_.synchronize();
    }
    compute_.synchronize();
    rows_.synchronize();
  }

  std::int64_t waits_of_dispatch() const { return waits_of_dispatch_; }

  void add_to(RankLayerResult& result) {
    const auto rank = static_cast<std::size_t>(group_.rank());
    const TensorList tensors{outputs_[0], outputs_[1], gradients_[0], gradients_[1]};
    result.outputs.resize(4);
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> own = download(compute_, tensors[i]);
      std::vector<float>& all = result.outputs[static_cast<std::size_t>(i)];
      all.resize(own.size() * static_cast<std::size_t>(group_.size()));
      std::ranges::copy(own, all.begin() + static_cast<std::ptrdiff_t>(rank * own.size()));
    }
    for (const ParameterUnit& unit : store_.units()) {
      for (const Parameter* parameter : unit.parameters) add_gradient(unit.kind, *parameter, result);
    }
    add(download(compute_, mb_.sums), result.sums_of_each);
    place(mb_.rows_sent, result.rows_sent);
    place(mb_.expert_counts, result.expert_counts);
    place(mb_.room_needed, result.needed);
  }

 private:
  Tensor persistent(DType dtype, const Shape& shape) {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(pool_.allocate(bytes, MemoryCategory::kOther, "test"), dtype, shape);
  }

  void make_microbatch() {
    const std::int64_t tokens = test_.tokens / group_.size();
    auto* const parameters = static_cast<MicrobatchParameters*>(
        pool_.allocate(sizeof(MicrobatchParameters), MemoryCategory::kOther, "test"));
    const MicrobatchParameters values{.iteration = 3,
                                      .first_sample = 5 + group_.rank() * (tokens / kLength),
                                      .loss_scale = 0.125f,
                                      .router_scale = 0.125f};
    copy_from_host(compute_, parameters, &values, sizeof(values));
    compute_.synchronize();
    mb_ = {.sequences = tokens / kLength,
           .seq_length = kLength,
           .parameters = parameters,
           .sums = persistent(DType::kFp32, {num_step_sums(test_.layers)}),
           .expert_counts = persistent(DType::kInt32, {test_.layers, test_.moe.num_experts}),
           .room_needed = persistent(DType::kInt32, {2}),
           .rows_sent = persistent(DType::kInt32, {test_.layers, group_.size()})};
    for (TensorList* list : {&inputs_, &output_gradients_}) {
      for (int i = 0; i < 2; ++i) list->push_back(persistent(test_.dtype, {tokens, kRankLayerHidden}));
    }
  }

  // Fills inputs with this rank's part of the values drawn for all ranks.
  void fill(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<float> normal;
    for (const TensorList* list : {&inputs_, &output_gradients_}) {
      for (int i = 0; i < 2; ++i) {
        std::vector<float> all(static_cast<std::size_t>(test_.tokens * kRankLayerHidden));
        for (float& value : all) value = normal(random);
        if (list == &inputs_ && test_.routing != Routing::kOwn) {
          for (std::size_t at = 0; at < all.size(); at += kRankLayerHidden) all[at] = 20;
        }
        const Tensor& own = (*list)[i];
        const auto first = static_cast<std::size_t>(group_.rank() * own.numel());
        upload(compute_, std::span(all).subspan(first, static_cast<std::size_t>(own.numel())), own);
      }
    }
    store_.initialize(compute_, kSeed);
    fill_biases();
    if (test_.routing != Routing::kOwn) choose_experts();
    store_.zero_gradients(compute_);
    for (const Tensor& tensor : {mb_.sums, mb_.expert_counts, mb_.room_needed, mb_.rows_sent})
      launch(compute_, Fill{.x = tensor, .value = 0});
  }

  // Replaces the zeros of biases by values of their rows.
  void fill_biases() {
    for (const ParameterUnit& unit : store_.units()) {
      for (Parameter* parameter : unit.parameters) {
        if (!parameter->name().ends_with(".bias")) continue;
        std::vector<float> values;
        for (std::int64_t row = 0; row < parameter->shape[0]; ++row)
          values.push_back(static_cast<float>(parameter->parts.front().global_row_of(row) * 37 % 19 - 9) / 8);
        upload(compute_, values, parameter->weight);
      }
    }
  }

  // Makes all tokens choose among a quarter of the experts, whose logits grow with a large input element.
  void choose_experts() {
    Parameter& router = *store_.units().front().parameters[1];
    ASSERT_EQ(router.name(), "router.weight");
    std::vector<float> weight = download(compute_, router.weight);
    const std::size_t experts = weight.size() / kRankLayerHidden, few = experts / 4;
    for (std::size_t e = 0; e < experts; ++e) {
      const bool chosen = test_.routing == Routing::kFirstRank ? e < few : e >= experts - few;
      weight[e * kRankLayerHidden] = chosen ? 4 : -4;
    }
    upload(compute_, weight, router.weight);
  }

  // Runs weight gradients as most schedules do, or delayed. `waits_after_weights` orders them as a lowering does for
  // ReturnPoints::after_weights.
  void forward_and_back() {
    layer_.clear();
    outputs_ = inputs_;
    for (std::size_t s = 0; s < segments_.size(); ++s)
      outputs_ = segments_[s].segment->forward(ctx_, mb_, outputs_, stashes_[s]);
    gradients_ = output_gradients_;
    const bool later = test_.waits_after_weights && dispatcher_;
    const auto backward_weight = [&](std::size_t s) {
      if (!test_.delay_weights) segments_[s].segment->backward_weight(ctx_, mb_, stashes_[s]);
    };
    for (std::size_t s = segments_.size(); s-- > 0;) {
      const std::int64_t waits_before = waits_.count;
      const Segment& segment = *segments_[s].segment;
      gradients_ = segment.backward_data(ctx_, mb_, gradients_, stashes_[s]);
      if (segments_[s].name == "dispatch") waits_of_dispatch_ = waits_.count - waits_before;
      if (!later) segment.wait_exchange(ctx_);
      if (!later || segments_[s].name != "experts") backward_weight(s);
      if (!later || segments_[s].name != "dispatch") continue;
      backward_weight(s + 1);
      segment.wait_exchange(ctx_);
    }
    for (std::size_t s = segments_.size(); test_.delay_weights && s-- > 0;)
      segments_[s].segment->backward_weight(ctx_, mb_, stashes_[s]);
  }

  void add_gradient(UnitKind kind, const Parameter& parameter, RankLayerResult& result) {
    const std::vector<float> own = download(compute_, parameter.main_grad);
    const LogicalTensor& part = parameter.parts.front();
    if (kind == UnitKind::kDense) return add(own, result.dense_of_each[part.name]);
    std::vector<float>& whole = result.experts[part.name];
    whole.resize(static_cast<std::size_t>(part.global_shape.numel()), std::nanf(""));
    const auto columns = static_cast<std::size_t>(parameter.row_elements());
    for (std::int64_t row = 0; row < part.rows; ++row) {
      const std::int64_t to = part.global_row_of(row) * elements_of_row(part.global_shape) + part.global_column;
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * columns), columns,
                  whole.begin() + to);
    }
  }

  void add(const std::vector<float>& own, std::vector<std::vector<float>>& of_each) {
    of_each.resize(static_cast<std::size_t>(group_.size()));
    of_each[static_cast<std::size_t>(group_.rank())] = own;
  }

  void place(const Tensor& own, std::vector<std::int32_t>& all) {
    const std::int64_t n = own.numel();
    all.resize(static_cast<std::size_t>(n * group_.size()));
    std::copy_n(own.as<const std::int32_t>(), n, all.begin() + group_.rank() * n);
  }

  const RankLayerCase& test_;
  const WaitCounter& waits_;
  const ModelConfig config_;
  Communicator& group_;
  MemoryPool pool_;
  Stream compute_, rows_;
  AbortOnUnwind guard_;
  Arena arena_;
  const Context ctx_;
  std::optional<Dispatcher> dispatcher_;
  RowExchange one_rank_;
  ParameterStore store_;
  std::vector<NamedSegment> segments_;
  std::vector<Stash> stashes_;
  Stash layer_;
  Microbatch mb_;
  TensorList inputs_, outputs_, output_gradients_, gradients_;
  std::int64_t waits_of_dispatch_ = 0;
};

using Gradients = RankLayerResult::Gradients;

std::vector<float> sum_of(const std::vector<std::vector<float>>& of_each) {
  std::vector<float> sum(of_each.front().size());
  for (const std::vector<float>& own : of_each) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
  }
  return sum;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / (norm > 0 ? norm : 1));
}

void expect_same_gradients(const Gradients& a, const Gradients& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(same_bits(values, b.at(name))) << name;
}

}  // namespace

RankLayerResult run_rank_layer(const RankLayerCase& test) {
  RankLayerResult result;
  std::mutex mutex;
  ThreadWorld(test.ranks, std::chrono::seconds(60)).run([&](Communicator& group) {
    HazardChecker hazards;
    WaitCounter waits{.suppressed = test.suppressed_wait};
    RankLayer layer(test, group, {.hazards = test.check_hazards ? &hazards : nullptr, .waits = &waits});
    layer.run();
    const std::lock_guard lock(mutex);
    if (group.rank() == 0) {
      result.hazards = hazards.count(), result.waits = waits.count;
      result.waits_of_dispatch = layer.waits_of_dispatch();
    }
    layer.add_to(result);
  });
  for (const auto& [name, of_each] : result.dense_of_each) result.dense[name] = sum_of(of_each);
  result.sums = sum_of(result.sums_of_each);
  return result;
}

void expect_same_rows(const RankLayerResult& a, const RankLayerResult& b) {
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(a.outputs[i], b.outputs[i])) << "rows " << i;
}

void expect_same_experts(const RankLayerResult& a, const RankLayerResult& b) {
  expect_same_rows(a, b);
  expect_same_gradients(a.experts, b.experts);
}

void expect_same(const RankLayerResult& a, const RankLayerResult& b) {
  expect_same_experts(a, b);
  expect_same_gradients(a.dense, b.dense);
  EXPECT_TRUE(same_bits(a.sums, b.sums));
}

void expect_near(const Gradients& a, const Gradients& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_LE(distance(values, b.at(name)), tolerance) << name;
}

void expect_near_rows(const RankLayerResult& a, const RankLayerResult& b, double tolerance) {
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LE(distance(a.outputs[i], b.outputs[i]), tolerance) << "rows " << i;
}

}  // namespace megalith::test
