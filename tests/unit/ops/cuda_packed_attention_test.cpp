// bf16 attention of packed documents on the GPU at sizes of training: against fp64, and run to run. The bodies in
// packed_attention_test.cpp cover the small shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "core/device/cuda_device.h"
#include "core/ops/attention/attention.h"
#include "core/ops/op.h"
#include "tests/reference/attention.h"
#include "tests/unit/ops/cuda_memory.h"

namespace megalith::test {
namespace {

struct LongPack {
  std::vector<std::int32_t> lengths;
  std::int64_t capacity, heads, kv_heads, dim, window = 0;

  std::int64_t rows() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  reference::AttentionSizes sizes() const {
    const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
    reference::AttentionSizes z{.samples = 1,
                                .queries = size(rows()),
                                .keys = size(rows()),
                                .heads = size(heads),
                                .kv_heads = size(kv_heads),
                                .dim = size(dim),
                                .scale = static_cast<double>(scale()),
                                .window = size(window)};
    std::size_t first = 0;
    for (const std::int32_t length : lengths) {
      z.documents.push_back({first, size(length), first, size(length)});
      first += size(length);
    }
    return z;
  }
};

class CudaPack {
 public:
  CudaPack(CudaStream& stream, const LongPack& z)
      : stream_(stream),
        pack_(z),
        x_(stream, {1, z.rows(), z.heads + 2 * z.kv_heads, z.dim}, DType::kBf16),
        d_(stream, x_.tensor().shape, DType::kBf16),
        out_(stream, {1, z.rows(), z.heads, z.dim}, DType::kBf16),
        d_out_(stream, out_.tensor().shape, DType::kBf16),
        lse_(stream, {1, z.heads, z.rows()}, DType::kFp32),
        delta_(stream, lse_.tensor().shape, DType::kFp32),
        begin_(stream, {z.capacity}, DType::kInt32),
        length_(stream, {z.capacity}, DType::kInt32) {
    x_.upload(normal_values(x_.tensor().numel(), 1));
    d_out_.upload(normal_values(d_out_.tensor().numel(), 2));
    set_lengths(z.lengths);
  }

  void set_lengths(std::vector<std::int32_t> lengths) {
    lengths.resize(static_cast<std::size_t>(pack_.capacity));
    std::vector<std::int32_t> begin(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), begin.begin(), 0);
    stream_.copy(begin_.tensor().data, begin.data(), begin_.tensor().bytes());
    stream_.copy(length_.tensor().data, lengths.data(), length_.tensor().bytes());
    MEGALITH_CUDA_CHECK(cudaStreamSynchronize(stream_.handle()));
  }
  void poison() {
    for (CudaBlock* block : {&d_, &out_, &lse_, &delta_, workspace_.get()}) {
      if (block != nullptr) block->poison();
    }
  }
  void forward() {
    AttentionForward op{.q = of_queries(x_),
                        .k = of_keys(x_),
                        .v = of_values(x_),
                        .out = out_.tensor(),
                        .lse = lse_.tensor(),
                        .scale = pack_.scale(),
                        .workspace = {}};
    run_packed(op);
  }
  void backward(bool deterministic) {
    AttentionBackward op{.q = of_queries(x_),
                         .k = of_keys(x_),
                         .v = of_values(x_),
                         .out = out_.tensor(),
                         .d_out = d_out_.tensor(),
                         .lse = lse_.tensor(),
                         .delta = delta_.tensor(),
                         .dq = of_queries(d_),
                         .dk = of_keys(d_),
                         .dv = of_values(d_),
                         .workspace = {},
                         .scale = pack_.scale(),
                         .deterministic = deterministic};
    run_packed(op);
  }
  // q, k and v, or their gradients, one after another.
  std::vector<std::vector<double>> parts(bool gradients) {
    const std::vector<double> all = (gradients ? d_ : x_).values();
    const auto width = static_cast<std::size_t>(pack_.dim);
    const auto q = static_cast<std::size_t>(pack_.heads) * width, k = static_cast<std::size_t>(pack_.kv_heads) * width;
    std::vector<std::vector<double>> result(3);
    for (std::size_t row = 0; row < all.size(); row += q + 2 * k) {
      for (std::size_t i = 0; i < q + 2 * k; ++i) result[i < q ? 0 : i < q + k ? 1 : 2].push_back(all[row + i]);
    }
    return result;
  }
  std::vector<double> d_out() { return d_out_.values(); }
  std::vector<double> out() { return out_.values(); }
  std::vector<double> lse() { return lse_.values(); }

 private:
  Tensor of_queries(const CudaBlock& x) const { return x.tensor().slice(2, 0, pack_.heads); }
  Tensor of_keys(const CudaBlock& x) const { return x.tensor().slice(2, pack_.heads, pack_.kv_heads); }
  Tensor of_values(const CudaBlock& x) const {
    return x.tensor().slice(2, pack_.heads + pack_.kv_heads, pack_.kv_heads);
  }
  template <class Op>
  void run_packed(Op& op) {
    op.window = pack_.window;
    op.query_documents = op.key_documents = {.begin = begin_.tensor(), .length = length_.tensor()};
    op.max_length = pack_.rows();
    check(op);
    add_workspace(op, DeviceType::kCuda, [this](std::int64_t bytes) {
      if (workspace_ == nullptr || workspace_->tensor().numel() < bytes)
        workspace_ = std::make_unique<CudaBlock>(stream_, Shape{bytes}, DType::kUint8);
      return workspace_->tensor().slice(0, 0, bytes);
    });
    run(stream_, op);
  }

  CudaStream& stream_;
  LongPack pack_;
  CudaBlock x_, d_, out_, d_out_, lse_, delta_, begin_, length_;
  std::unique_ptr<CudaBlock> workspace_;
};

class CudaPackedAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
};

double error_of(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

const LongPack kLongPacks[] = {{{300, 64, 1, 133, 526}, 8, 4, 2, 128},
                               {{129, 300, 15, 204}, 4, 4, 4, 64},
                               {{400, 1, 247}, 16, 4, 1, 128, 200},
                               {{300, 212}, 3, 2, 1, 256},
                               {{300, 212}, 3, 2, 1, 96}};

TEST_F(CudaPackedAttention, AgreesWithFp64) {
  CudaStream stream;
  for (const LongPack& z : kLongPacks) {
    SCOPED_TRACE(testing::Message() << z.rows() << " rows, head dim " << z.dim);
    CudaPack p(stream, z);
    const auto x = p.parts(false);
    const auto want = reference::attention(x[0], x[1], x[2], z.sizes());
    const auto gradient =
        reference::attention_gradient(x[0], x[1], x[2], p.d_out(), {.out = want.out, .lse = want.lse}, z.sizes());
    for (const bool deterministic : {true, false}) {
      p.poison();
      p.forward();
      p.backward(deterministic);
      const auto d = p.parts(true);
      const double errors[] = {error_of(p.out(), want.out), error_of(p.lse(), want.lse), error_of(d[0], gradient.dq),
                               error_of(d[1], gradient.dk), error_of(d[2], gradient.dv)};
      std::printf("[ errors   ] T%ld D%ld window %ld %s: out %.2e lse %.1e dq %.2e dk %.2e dv %.2e\n", z.rows(), z.dim,
                  z.window, deterministic ? "det" : "acc", errors[0], errors[1], errors[2], errors[3], errors[4]);
      // As for one sample: roundings to bf16, each at most 2^-9 of its value.
      EXPECT_LT(errors[0], 2 * 0x1p-9);
      EXPECT_LT(errors[1], 1e-6);
      EXPECT_LT(errors[2], 4 * 0x1p-9);
      EXPECT_LT(errors[3], 4 * 0x1p-9);
      EXPECT_LT(errors[4], 3 * 0x1p-9);
    }
  }
}

// Every other run competes with another stream for the multiprocessors. The accumulating form's dq may vary.
TEST_F(CudaPackedAttention, RepeatsBitForBit) {
  CudaStream stream, other;
  const LongPack z{{1500, 64, 1, 333, 950, 1248}, 64, 8, 2, 128};
  CudaPack p(stream, z), competitor(other, z);
  for (const bool deterministic : {true, false}) {
    std::set<std::vector<double>> dq, others;
    for (int i = 0; i < 8; ++i) {
      p.poison();
      for (int n = 0; n < 4 * (i % 2); ++n) competitor.forward();
      p.forward();
      p.backward(deterministic);
      auto d = p.parts(true);
      dq.insert(d[0]);
      d[1].insert(d[1].end(), d[2].begin(), d[2].end());
      others.insert(d[1]);
      others.insert(p.out());
      others.insert(p.lse());
    }
    EXPECT_EQ(others.size(), 3u);
    std::printf("[ repeats  ] %s: %zu results of dq in 8 runs\n", deterministic ? "det" : "acc", dq.size());
    if (deterministic) {
      EXPECT_EQ(dq.size(), 1u);
    }
  }
}

// One plan serves all lengths: a graph replays with others and gives the bits of eager runs.
TEST_F(CudaPackedAttention, ReplaysWithOtherLengths) {
  CudaStream stream;
  const LongPack z{{700, 64, 1, 333, 950}, 8, 4, 2, 128};
  CudaPack p(stream, z);
  const auto step = [&p] {
    p.forward();
    p.backward(true);
  };
  const auto results = [&p] {
    return std::vector{p.out(), p.lse(), p.parts(true)[0], p.parts(true)[1], p.parts(true)[2]};
  };
  step();  // builds the plans
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>{2048}, {1, 2047}, {256, 256, 256, 256, 256, 256, 256, 256}}) {
    p.set_lengths(lengths);
    p.poison();
    step();
    const auto want = results();
    p.set_lengths(z.lengths);
    p.poison();
    capture_and_replay(stream, 1, [&] { step(); });
    const auto own = results();
    EXPECT_NE(own, want);
    p.set_lengths(lengths);
    p.poison();
    capture_and_replay(stream, 2, [&] { step(); });
    EXPECT_EQ(results(), want);
  }
}

}  // namespace
}  // namespace megalith::test
