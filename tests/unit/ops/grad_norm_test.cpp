#include "core/ops/optim/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ops/elementwise/elementwise.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class GradNormTest : public OpTest {
 protected:
  static constexpr std::int64_t kArrived = 300, kRows = 512;

  StepParameters finalize(const Values& sums, double loss, double clip, const StepParameters& before,
                          const Values& needed = {}) {
    StepParameters* parameters = device_struct(before);
    double sum = 0;
    for (const double square : sums) sum += square;
    const bool has_room = needed.empty() || (needed[0] <= kArrived && needed[1] <= kRows);
    const bool counts = has_room && std::isfinite(loss) && std::isfinite(static_cast<float>(std::sqrt(sum)));
    Idles idle = counts ? Idles{} : Idles{{parameters, "a step that is skipped is not counted"}};
    const auto n = static_cast<std::int64_t>(sums.size());
    GradNormFinalize op{.sums = input({n}, DType::kFp64, sums),
                        .loss = input({1}, DType::kFp32, {loss}),
                        .clip_grad = clip,
                        .parameters = parameters};
    if (!needed.empty()) op.room = {.needed = input({2}, DType::kInt32, needed), .arrived = kArrived, .rows = kRows};
    run(op, idle);
    return read_struct(parameters);
  }
};
MEGALITH_OP_TESTS(GradNormTest);

TEST_P(GradNormTest, SumOfSquares) {
  struct Case {
    std::int64_t numel, begin = 0, block = kSquareBlock;
  };
  const std::vector<Case> cases = {{0},
                                   {1},
                                   {7, 3},
                                   {8},
                                   {31},
                                   {33},
                                   {0, 100},
                                   {1000, 0, 1},
                                   {1000, 7, 128},
                                   {1024, 0, 256},
                                   {4099, 90, 1000},
                                   {16385},
                                   {65536},
                                   {65537, 65535},
                                   {100003, 40000}};
  SumOfSquares op;
  for (const Case& one : cases) {
    op.tensors.push_back({.x = input({one.numel}), .begin = one.begin, .block = one.block});
    op.tensors.back().pieces = output({op.tensors.back().num_pieces()}, DType::kFp64);
  }
  run(op);
  for (const SquaredTensor& tensor : op.tensors) {
    const Values x = values(tensor.x);
    std::vector<long double> sums(static_cast<std::size_t>(tensor.pieces.numel()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<std::size_t>(tensor.begin) + i;
      sums.at(at / static_cast<std::size_t>(tensor.block)) += static_cast<long double>(x[i]) * x[i];
    }
    expect_close(tensor.pieces, Values(sums.begin(), sums.end()),
                 {.length = std::min(tensor.block, tensor.x.numel()), .accumulator = DType::kFp64});
  }
}

// Also more tensors than one launch accepts on CUDA.
TEST_P(GradNormTest, ASumDependsOnItsTensorAlone) {
  const Tensor x = input({70001}), unaligned = output({70002}).slice(0, 1, 70001);
  const Tensor alone = output({2}, DType::kFp64), many = output({2400}, DType::kFp64);
  run(SumOfSquares{.tensors = {{.x = x, .pieces = alone}}});
  const Values want = values(alone);
  SumOfSquares op;
  for (std::int64_t i = 0; i < 1200; ++i) {
    op.tensors.push_back({.x = i % 300 == 7 ? x : i % 300 == 8 ? unaligned : x.slice(0, i, i % 6)});
    op.tensors.back().pieces = many.slice(0, 2 * i, op.tensors.back().num_pieces());
  }
  launch(stream(), Copy{.src = x, .dst = unaligned});
  launch(stream(), op);
  const Values sums = values(many);
  for (std::size_t i = 0; i < 1200; ++i) {
    if (i % 300 == 7 || i % 300 == 8) {
      ASSERT_EQ(sums[2 * i], want[0]) << i;
      ASSERT_EQ(sums[2 * i + 1], want[1]) << i;
    } else {
      ASSERT_EQ(sums[2 * i] >= 0, i % 6 > 0) << i;  // NaN if nothing is written
    }
  }
}

// Three tensors, one of which follows another without a gap, in a buffer of two blocks for each of four shards. Pieces
// of the shards, with 0 elsewhere, add up to the unsharded norm; the sums of the tensors are equal.
TEST_P(GradNormTest, ShardsGiveTheBitsOfTheWhole) {
  constexpr std::int64_t kBlock = 1000;
  const std::vector<std::pair<std::int64_t, std::int64_t>> tensors = {{0, 3}, {3, 4321}, {4480, 7013}};
  const Tensor flat = input({8 * kBlock});
  std::vector<Values> pieces, sums;
  for (const std::int64_t shards : {1, 2, 4}) {
    const Tensor all = inout({10}, DType::kFp64, Values(10, 0)), out = output({3}, DType::kFp64);
    AddPieces add{.pieces = all, .ends = {}, .out = out};
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      const std::int64_t first = 8 * kBlock / shards * shard, last = 8 * kBlock / shards * (shard + 1);
      SumOfSquares op;
      std::int64_t end_piece = 0;
      add.ends.clear();
      for (const auto& [begin, end] : tensors) {
        const std::int64_t own = std::clamp(begin, first, last), own_end = std::clamp(end, own, last);
        if (own < own_end) {
          SquaredTensor part{.x = flat.slice(0, own, own_end - own), .begin = own % kBlock, .block = kBlock};
          part.pieces = all.slice(0, end_piece + own / kBlock - begin / kBlock, part.num_pieces());
          op.tensors.push_back(part);
        }
        end_piece += (end - 1) / kBlock - begin / kBlock + 1;
        add.ends.push_back(end_piece);
      }
      launch(stream(), op);
    }
    pieces.push_back(values(all));
    launch(stream(), add);
    sums.push_back(values(out));
    EXPECT_EQ(pieces.back(), pieces.front()) << shards;
    EXPECT_EQ(sums.back(), sums.front()) << shards;
  }
  for (const double piece : pieces.front()) EXPECT_GT(piece, 0);
}

TEST_P(GradNormTest, CountsZerosByPiece) {
  Values numbers(100'003);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % 3 == 0 ? (i % 2 == 0 ? 0.0 : -0.0) : 1e-30;
  for (const std::int64_t begin : {0, 90}) {
    SumOfSquares op{.tensors = {{.x = input({100'003}, dtype(), numbers), .begin = begin, .block = 4096}},
                    .zeros = true};
    op.tensors[0].pieces = output({op.tensors[0].num_pieces()}, DType::kFp64);
    run(op);
    Values want(static_cast<std::size_t>(op.tensors[0].num_pieces()));
    for (std::size_t i = 0; i < numbers.size(); i += 3) ++want[(i + static_cast<std::size_t>(begin)) / 4096];
    EXPECT_EQ(values(op.tensors[0].pieces), want);
  }
}

TEST_P(GradNormTest, StoresATotal) {
  const Tensor sums = input({700}, DType::kFp64, Values(700, 7.0));
  for (const bool root : {false, true}) {
    const Tensor total = output({1}, DType::kFp64);
    run(StoreTotal{.sums = sums, .root = root, .total = total.as<double>()});
    EXPECT_EQ(values(total), Values{root ? 70.0 : 4900.0});
  }
}

TEST_P(GradNormTest, AddPieces) {
  if (dtype() != DType::kFp32) GTEST_SKIP() << "pieces have no other dtype";
  Values pieces = normal(3000);
  for (double& piece : pieces) piece *= piece;
  std::vector<std::int64_t> ends = {0, 1, 1, 700, 2900, 3000};
  ends.resize(5000, 3000);  // more than one launch adds on CUDA
  ends.push_back(3000);
  const auto count = static_cast<std::int64_t>(ends.size());
  const Tensor out = output({count}, DType::kFp64);
  const AddPieces op{.pieces = input({3000}, DType::kFp64, pieces), .ends = ends, .out = out};
  run(op);
  Values want;
  for (std::size_t i = 0, at = 0; i < ends.size(); ++i) {
    long double sum = 0;
    for (; at < static_cast<std::size_t>(ends[i]); ++at) sum += pieces[at];
    want.push_back(static_cast<double>(sum));
  }
  expect_close(out, want, {.length = 2200, .accumulator = DType::kFp64});
  run(AddPieces{.pieces = input({0}, DType::kFp64, Values{}), .ends = {}, .out = output({0}, DType::kFp64)});
  AddPieces broken = op;
  broken.ends[2] = 0;
  expect_refused(broken, "op.ends");
}

TEST_P(GradNormTest, SquaresBeyondFp32AndNotANumber) {
  const Tensor out = output({2}, DType::kFp64);
  Values ones(40, 1.0);
  ones[39] = std::nan("");
  const SumOfSquares op{.tensors = {{.x = input({2}, dtype(), {1e30, -1e30}), .pieces = out.slice(0, 0, 1)},
                                    {.x = input({40}, dtype(), ones), .pieces = out.slice(0, 1, 1)}}};
  run(op);
  EXPECT_NEAR(values(out)[0], 2e60, dtype() == DType::kFp32 ? 1e54 : 2e58);
  EXPECT_TRUE(std::isnan(values(out)[1]));
  SumOfSquares broken = op;
  broken.tensors[0].begin = kSquareBlock;
  expect_refused(broken, "tensor.begin");
  broken.tensors[0] = {.x = broken.tensors[0].x, .block = 2 * kSquareBlock, .pieces = broken.tensors[0].pieces};
  expect_refused(broken, "tensor.block");
}

TEST_P(GradNormTest, NormClipAndCount) {
  const StepParameters before{.iteration = 5, .learning_rate = 0.5f, .skip = 1, .adam_count = 3};
  const StepParameters clipped = finalize({9, 0, 16}, 2.5, 1.0, before);
  EXPECT_EQ(clipped.grad_norm, 5);
  EXPECT_FLOAT_EQ(clipped.clip_factor, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(clipped.skip, 0);
  EXPECT_EQ(clipped.adam_count, 4);
  EXPECT_EQ(clipped.loss, 2.5f);
  EXPECT_EQ(clipped.iteration, 5);
  EXPECT_EQ(clipped.learning_rate, 0.5f);
  EXPECT_EQ(finalize({9, 0, 16}, 2.5, 10.0, before).clip_factor, 1);
  EXPECT_EQ(finalize({9, 0, 16}, 2.5, 0, before).clip_factor, 1);
  EXPECT_EQ(finalize({}, 0, 1, before).grad_norm, 0);
}

TEST_P(GradNormTest, NotFiniteSkipsTheStep) {
  const double inf = std::numeric_limits<double>::infinity();
  const StepParameters before{.adam_count = 3};
  for (const StepParameters& after : {finalize({1, std::nan("")}, 1, 1, before), finalize({1, inf}, 1, 1, before),
                                      finalize({1e300, 1e300}, 1, 1, before), finalize({1}, std::nan(""), 1, before),
                                      finalize({1}, -inf, 1, before)}) {
    EXPECT_EQ(after.skip, 1);
    EXPECT_EQ(after.adam_count, 3);
    EXPECT_EQ(after.clip_factor, 1);
  }
}

// Holds for any loss and gradients.
TEST_P(GradNormTest, RowsWithoutRoomSkipTheStep) {
  const StepParameters before{.adam_count = 3};
  const auto skip = [&](const Values& needed, double loss) {
    const StepParameters after = finalize({9, 16}, loss, 1, before, needed);
    EXPECT_EQ(after.adam_count, after.skip == 0 ? 4 : 3);
    EXPECT_EQ(after.clip_factor < 1, after.skip == 0);
    return after.skip;
  };
  for (const Values& needed : {Values{301, 1}, Values{1, 513}, Values{2147483647, 2147483647}}) {
    EXPECT_EQ(skip(needed, 1), kSkipNoRoom);
    EXPECT_EQ(skip(needed, std::nan("")), kSkipNoRoom);
  }
  EXPECT_EQ(skip({300, 512}, 1), 0);
  EXPECT_EQ(skip({300, 512}, std::nan("")), kSkipNotFinite);
}

TEST_P(GradNormTest, WriteParameters) {
  StepParameters* step = device_struct(StepParameters{.skip = 1, .adam_count = 8});
  run(WriteStepParameters{.iteration = 12, .learning_rate = 0.25f, .parameters = step});
  EXPECT_EQ(read_struct(step).iteration, 12);
  EXPECT_EQ(read_struct(step).learning_rate, 0.25f);
  EXPECT_EQ(read_struct(step).adam_count, 8);
  EXPECT_EQ(read_struct(step).skip, 1);
  MicrobatchParameters* microbatch = device_struct(MicrobatchParameters{});
  run(WriteMicrobatchParameters{.value = {.iteration = 3, .first_sample = 44, .loss_scale = 0.5f}, .out = microbatch});
  EXPECT_EQ(read_struct(microbatch).iteration, 3);
  EXPECT_EQ(read_struct(microbatch).first_sample, 44);
  EXPECT_EQ(read_struct(microbatch).loss_scale, 0.5f);
}

}  // namespace
}  // namespace megalith::test
