// Tests of dispatched tokens against tests/golden/experts/routes.json, which a script generated from the definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "moe/dispatch.h"
#include "moe/routed.h"
#include "tests/support/download.h"
#include "tests/thread_ranks/thread_communicator.h"

namespace megalith {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<std::int32_t>;

const Json& golden() {
  static const Json file = Json::parse(std::ifstream(MEGALITH_SOURCE_DIR "/tests/golden/experts/routes.json"));
  return file;
}

Numbers numbers(const Tensor& tensor, std::int64_t first = 0, std::int64_t count = -1) {
  const auto* const begin = tensor.as<const std::int32_t>() + first;
  return {begin, begin + (count < 0 ? tensor.numel() : count)};
}

// Dispatch of a case on one rank. Token t has the value rank x T + t in its row and its weights.
struct Arrivals {
  Numbers sends, arrived, offsets, token, position, choice, wanted;
  std::vector<float> row_weight;
};

Arrivals dispatch(const Json& c, Communicator& group, MoeTokenDispatcher way, Mode mode) {
  const std::int64_t tokens = c["tokens"], choices = c["choices"], experts = c["experts"];
  MemoryPool pool(DeviceType::kCpu);
  Stream compute(DeviceType::kCpu, "compute"), rows(DeviceType::kCpu, "rows of experts");
  const AbortOnUnwind guard(group);
  Arena arena(pool, Arena::Mode::kUnplanned);
  const Context ctx{.compute = compute, .arena = arena};
  Dispatcher dispatcher(
      group, rows, {.way = way, .copies = c["copies"], .capacity_factor = std::stod(c["factor"].get<std::string>())});
  const Tensor x = ctx.empty({tokens, 1}, DType::kFp32, "x");
  const Tensor weight = ctx.empty({tokens, choices}, DType::kFp32, "weight");
  const Tensor choice = ctx.empty({tokens, choices}, DType::kInt32, "choice");
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t number = group.rank() * tokens + t;
    x.as<float>()[t] = static_cast<float>(number);
    for (std::int64_t k = 0; k < choices; ++k) {
      choice.as<std::int32_t>()[t * choices + k] = c["choice"][static_cast<std::size_t>(group.rank())][t][k];
      weight.as<float>()[t * choices + k] = static_cast<float>(100 * number + k);
    }
  }
  const Tensor needed = ctx.empty({2}, DType::kInt32, "needed");
  needed.as<std::int32_t>()[0] = 1, needed.as<std::int32_t>()[1] = 0;
  const Dispatch segment({.dispatcher = dispatcher,
                          .label = "layer 0's experts",
                          .experts = experts,
                          .combine_groups = dispatcher.expert_groups()});
  Stash stash, layer;
  stash.set_layer(layer);
  const Microbatch mb{.mode = mode, .room_needed = needed};
  const Routed routed{.x = x, .residual = x, .weight = weight, .choice = choice};
  const auto out = from_list<Arrived>(segment.forward(ctx, mb, list_of(routed), stash));
  compute.synchronize();
  const Dispatched at = dispatched(stash);
  const std::int64_t arrived = *at.choice.bound, rows_of_experts = numbers(out.offsets).back();
  Arrivals result{.sends = numbers(at.sends),
                  .offsets = numbers(out.offsets),
                  .token = numbers(out.token, 0, rows_of_experts),
                  .position = numbers(at.position, 0, arrived * choices),
                  .choice = numbers(at.choice, 0, arrived * choices),
                  .wanted = numbers(needed)};
  for (std::int64_t row = 0; row < arrived; ++row)
    result.arrived.push_back(static_cast<std::int32_t>(out.x.as<float>()[row]));
  for (std::int64_t row = 0; row < rows_of_experts; ++row) result.row_weight.push_back(out.row_weight.as<float>()[row]);
  return result;
}

// Expects the token and choice of each expert row.
void expect_rows(const Json& c, const Arrivals& got, std::int64_t first_expert) {
  const auto choices = c["choices"].get<std::size_t>();
  for (std::size_t expert = 0; expert + 1 < got.offsets.size(); ++expert) {
    for (std::int32_t row = got.offsets[expert]; row < got.offsets[expert + 1]; ++row) {
      const auto at = static_cast<std::size_t>(got.token[static_cast<std::size_t>(row)]);
      std::size_t k = 0;
      while (got.position[at * choices + k] != row) ASSERT_LT(++k, choices) << "row " << row;
      EXPECT_EQ(got.choice[at * choices + k], first_expert + static_cast<std::int64_t>(expert));
      EXPECT_EQ(got.row_weight[static_cast<std::size_t>(row)],
                static_cast<float>(100 * got.arrived[at] + static_cast<int>(k)));
    }
  }
}

std::vector<Arrivals> dispatch_on_ranks(const Json& c, MoeTokenDispatcher way, Mode mode = Mode::kTrain) {
  std::vector<Arrivals> all(c["ranks"].get<std::size_t>());
  ThreadWorld(c["ranks"]).run([&](Communicator& group) {
    Arrivals mine = dispatch(c, group, way, mode);
    all[static_cast<std::size_t>(group.rank())] = std::move(mine);
  });
  return all;
}

void expect_golden(const Json& c, MoeTokenDispatcher way) {
  const int ranks = c["ranks"];
  const std::vector<Arrivals> all = dispatch_on_ranks(c, way);
  const std::int64_t local = c["experts"].get<std::int64_t>() * c["copies"].get<std::int64_t>() / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(rank);
    const Arrivals& got = all[static_cast<std::size_t>(rank)];
    const Json& want = c["targets"][static_cast<std::size_t>(rank)];
    Numbers sends;
    for (const Json& row : c["sends"]) sends.insert(sends.end(), row.begin(), row.end());
    EXPECT_EQ(got.offsets, want["offsets"].get<Numbers>());
    expect_rows(c, got, rank / c["copies"].get<int>() * local);
    std::vector<std::int32_t> tokens, wanted;
    for (const std::int32_t at : got.token) tokens.push_back(got.arrived[static_cast<std::size_t>(at)]);
    for (const Json& at : want["token"]) wanted.push_back(want["arrived"][at.get<std::size_t>()]);
    EXPECT_EQ(tokens, wanted);
    if (way == MoeTokenDispatcher::kAllGather) continue;  // all tokens arrive
    EXPECT_EQ(got.sends, sends);
    EXPECT_EQ(got.arrived, want["arrived"].get<Numbers>());
    EXPECT_EQ(got.wanted, (Numbers{std::max(want["wanted"][0].get<int>(), 1), want["wanted"][1].get<int>()}));
  }
}

TEST(Routes, AreThoseOfTheDefinitions) {
  ASSERT_EQ(golden().size(), 7);
  for (const Json& c : golden()) {
    SCOPED_TRACE(c["name"]);
    expect_golden(c, MoeTokenDispatcher::kAllToAll);
    if (c["name"] != "no_room") expect_golden(c, MoeTokenDispatcher::kAllGather);
  }
}

// Generation has no retry with larger capacity.
TEST(Routes, OfGenerationHaveRoomForAll) {
  const auto no_room = std::ranges::find_if(golden(), [](const Json& c) { return c["name"] == "no_room"; });
  ASSERT_NE(no_room, golden().end());
  Json ample = *no_room;
  ample["factor"] = "1000";
  for (const MoeTokenDispatcher way : {MoeTokenDispatcher::kAllToAll, MoeTokenDispatcher::kAllGather}) {
    const std::vector<Arrivals> want = dispatch_on_ranks(ample, way);
    const std::vector<Arrivals> got = dispatch_on_ranks(*no_room, way, Mode::kGenerate);
    for (std::size_t rank = 0; rank < want.size(); ++rank) {
      EXPECT_EQ(got[rank].arrived, want[rank].arrived);
      EXPECT_EQ(got[rank].offsets, want[rank].offsets);
      EXPECT_EQ(got[rank].token, want[rank].token);
      EXPECT_EQ(got[rank].row_weight, want[rank].row_weight);
    }
  }
}

}  // namespace
}  // namespace megalith
