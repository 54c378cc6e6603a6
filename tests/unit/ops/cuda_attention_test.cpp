// bf16 attention on the GPU at sizes and layouts of training: against fp64, run to run, and replayed. The bodies in
// attention_test.cpp cover the small shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>

#include "core/device/cuda_device.h"
#include "core/ops/attention/attention.h"
#include "core/ops/op.h"
#include "tests/reference/attention.h"
#include "tests/unit/ops/cuda_memory.h"

namespace megalith::test {
namespace {

enum class Layout { kFused, kPacked, kTokensFirst, kMixed };  // kMixed: separate q and k, v in the fused projection

struct AttentionCase {
  std::int64_t samples, tokens, heads, kv_heads, dim;
  Layout layout = Layout::kFused;
  bool low_scores = false;  // far below -ln(FLT_MAX), at which exp(-lse) of padding would overflow
};

// q, k, v or their gradients, in one allocation or in three.
struct Projection {
  CudaBlock fused, own_q, own_k, own_v;
  Tensor q, k, v;

  Projection(CudaStream& stream, const AttentionCase& x)
      : fused(stream, {x.samples, x.tokens, x.heads + 2 * x.kv_heads, x.dim}, DType::kBf16),
        own_q(stream, shape(x, x.heads), DType::kBf16),
        own_k(stream, shape(x, x.kv_heads), DType::kBf16),
        own_v(stream, shape(x, x.kv_heads), DType::kBf16) {
    q = fused.tensor().slice(2, 0, x.heads);
    k = fused.tensor().slice(2, x.heads, x.kv_heads);
    v = fused.tensor().slice(2, x.heads + x.kv_heads, x.kv_heads);
    if (x.layout == Layout::kFused) return;
    q = arranged(own_q.tensor(), x);
    k = arranged(own_k.tensor(), x);
    if (x.layout != Layout::kMixed) v = arranged(own_v.tensor(), x);
  }

  static Shape shape(const AttentionCase& x, std::int64_t heads) { return {x.samples, x.tokens, heads, x.dim}; }
  // [B, S, heads, D], stored as [S, B, heads, D] under kTokensFirst.
  static Tensor arranged(Tensor packed, const AttentionCase& x) {
    if (x.layout != Layout::kTokensFirst) return packed;
    const std::int64_t row = packed.size(2) * packed.size(3);
    packed.strides[0] = row;
    packed.strides[1] = x.samples * row;
    return packed;
  }
};

struct AttentionProblem {
  CudaStream& stream;
  AttentionCase sizes;
  Projection x, d;
  CudaBlock out, d_out, lse, delta;
  std::vector<CudaBlock*> written = {&d.fused, &d.own_q, &d.own_k, &d.own_v, &out, &lse, &delta};

  AttentionProblem(CudaStream& s, const AttentionCase& c)
      : stream(s),
        sizes(c),
        x(s, c),
        d(s, c),
        out(s, Projection::shape(c, c.heads), DType::kBf16),
        d_out(s, Projection::shape(c, c.heads), DType::kBf16),
        lse(s, {c.samples, c.heads, c.tokens}, DType::kFp32),
        delta(s, {c.samples, c.heads, c.tokens}, DType::kFp32) {
    upload(1);
  }

  void upload(std::uint64_t seed) {
    const double shift = sizes.low_scores ? 4 : 0;
    x.fused.upload(normal_values(x.fused.tensor().numel(), 10 * seed));
    x.own_q.upload(normal_values(x.own_q.tensor().numel(), 10 * seed + 1, shift));
    x.own_k.upload(normal_values(x.own_k.tensor().numel(), 10 * seed + 2, -shift));
    x.own_v.upload(normal_values(x.own_v.tensor().numel(), 10 * seed + 3));
    d_out.upload(normal_values(d_out.tensor().numel(), 10 * seed + 4));
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(sizes.dim)); }
  // With a workspace, which is allocated here.
  AttentionForward forward() {
    return ready(
        AttentionForward{.q = x.q, .k = x.k, .v = x.v, .out = out_view(out), .lse = lse.tensor(), .scale = scale()});
  }
  void run_forward() { run(stream, forward()); }
  void run_backward(bool deterministic) {
    AttentionBackward op{.q = x.q,
                         .k = x.k,
                         .v = x.v,
                         .out = out_view(out),
                         .d_out = out_view(d_out),
                         .lse = lse.tensor(),
                         .delta = delta.tensor(),
                         .dq = d.q,
                         .dk = d.k,
                         .dv = d.v,
                         .workspace = {},
                         .scale = scale(),
                         .deterministic = deterministic};
    run(stream, ready(op));
  }
  void poison() {
    for (CudaBlock* block : written) block->poison();
    if (workspace != nullptr) workspace->poison();
  }

 private:
  template <class Op>
  Op ready(const Op& op) {
    check(op);
    return with_workspace(op, DeviceType::kCuda, [this](std::int64_t bytes) {
      if (workspace == nullptr || workspace->tensor().numel() < bytes)
        workspace = std::make_unique<CudaBlock>(stream, Shape{bytes}, DType::kUint8);
      return workspace->tensor().slice(0, 0, bytes);
    });
  }
  Tensor out_view(const CudaBlock& block) const { return Projection::arranged(block.tensor(), sizes); }

  std::unique_ptr<CudaBlock> workspace;
};

// In logical order, whatever the strides.
std::vector<double> logical(CudaBlock& block, const Tensor& view) {
  const std::vector<double> stored = block.values();
  const auto offset = static_cast<std::int64_t>((view.as<std::byte>() - block.tensor().as<std::byte>())) / 2;
  std::vector<double> result;
  for (std::int64_t b = 0; b < view.size(0); ++b)
    for (std::int64_t s = 0; s < view.size(1); ++s)
      for (std::int64_t n = 0; n < view.size(2); ++n)
        for (std::int64_t i = 0; i < view.size(3); ++i)
          result.push_back(stored[static_cast<std::size_t>(offset + b * view.stride(0) + s * view.stride(1) +
                                                           n * view.stride(2) + i)]);
  return result;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

double rounded(double x) { return static_cast<double>(to_float(to_bf16(static_cast<float>(x)))); }

// The relative error of dq if only the output, dS and dq itself were rounded to bf16. Any kernel that feeds dS to bf16
// matrix units has this error. It is large if k has a mean, which an exact dS would cancel.
double error_floor_of_dq(const reference::Vector& q, const reference::Vector& k, const reference::Vector& v,
                         const reference::Vector& d_out, const reference::AttentionOutput& exact,
                         const reference::Vector& dq, const reference::AttentionSizes& z) {
  reference::Vector floor(dq.size());
  for (std::size_t b = 0; b < z.samples; ++b) {
    for (std::size_t n = 0; n < z.heads; ++n) {
      for (std::size_t s = 0; s < z.queries; ++s) {
        const std::size_t row = z.query(b, s, n);
        double delta = 0;
        for (std::size_t i = 0; i < z.dim; ++i) delta += d_out[row + i] * rounded(exact.out[row + i]);
        for (std::size_t t = 0; t <= s; ++t) {
          const std::size_t key = z.key(b, t, n);
          const double p =
              std::exp(z.scale * reference::dot(&q[row], &k[key], z.dim) - exact.lse[z.statistic(b, n, s)]);
          const double ds = rounded(z.scale * p * (reference::dot(&d_out[row], &v[key], z.dim) - delta));
          for (std::size_t i = 0; i < z.dim; ++i) floor[row + i] += ds * k[key + i];
        }
      }
    }
  }
  for (double& x : floor) x = rounded(x);
  return relative_error(floor, dq);
}

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  }
  static CudaBlock& block_of(Projection& p, const Tensor& view, CudaBlock& own) {
    return view.as<std::byte>() >= own.tensor().as<std::byte>() &&
                   view.as<std::byte>() < own.tensor().as<std::byte>() + own.tensor().bytes()
               ? own
               : p.fused;
  }
};

TEST_F(CudaAttention, AgreesWithFp64) {
  CudaStream stream;
  std::vector<AttentionCase> cases;
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t kv_heads : {4, 2}) {
      for (const Layout layout : {Layout::kFused, Layout::kPacked, Layout::kTokensFirst, Layout::kMixed}) {
        cases.push_back({2, 128, 4, kv_heads, dim, layout});
        cases.push_back({2, 200, 4, kv_heads, dim, layout});
      }
    }
    for (const std::int64_t tokens : {64, 333, 1024}) cases.push_back({1, tokens, 4, 2, dim});
    for (const std::int64_t tokens : {192, 200}) cases.push_back({1, tokens, 4, 2, dim, Layout::kPacked, true});
  }
  for (const std::int64_t dim : {8, 40, 96, 256}) cases.push_back({2, 150, 4, 2, dim});
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE("S" + std::to_string(c.tokens) + " K" + std::to_string(c.kv_heads) + " D" + std::to_string(c.dim) +
                 " layout " + std::to_string(static_cast<int>(c.layout)) + (c.low_scores ? " low" : ""));
    AttentionProblem p(stream, c);
    const reference::AttentionSizes sizes{.samples = static_cast<std::size_t>(c.samples),
                                          .queries = static_cast<std::size_t>(c.tokens),
                                          .keys = static_cast<std::size_t>(c.tokens),
                                          .heads = static_cast<std::size_t>(c.heads),
                                          .kv_heads = static_cast<std::size_t>(c.kv_heads),
                                          .dim = static_cast<std::size_t>(c.dim),
                                          .scale = static_cast<double>(p.scale())};
    const auto q = logical(block_of(p.x, p.x.q, p.x.own_q), p.x.q), k = logical(block_of(p.x, p.x.k, p.x.own_k), p.x.k),
               v = logical(block_of(p.x, p.x.v, p.x.own_v), p.x.v),
               d_out = logical(p.d_out, Projection::arranged(p.d_out.tensor(), c));
    const auto want = reference::attention(q, k, v, sizes);
    const auto gradient = reference::attention_gradient(q, k, v, d_out, {.out = want.out, .lse = want.lse}, sizes);
    const double floor = error_floor_of_dq(q, k, v, d_out, want, gradient.dq, sizes);
    for (const bool deterministic : {true, false}) {
      SCOPED_TRACE(deterministic ? "deterministic" : "accumulating");
      p.poison();
      p.run_forward();
      p.run_backward(deterministic);
      const double errors[] = {relative_error(logical(p.out, Projection::arranged(p.out.tensor(), c)), want.out),
                               relative_error(p.lse.values(), want.lse),
                               relative_error(logical(block_of(p.d, p.d.q, p.d.own_q), p.d.q), gradient.dq),
                               relative_error(logical(block_of(p.d, p.d.k, p.d.own_k), p.d.k), gradient.dk),
                               relative_error(logical(block_of(p.d, p.d.v, p.d.own_v), p.d.v), gradient.dv)};
      std::printf(
          "[ errors   ] B%ld S%ld N%ld/%ld D%ld layout %d%s %s: out %.2e lse %.1e dq %.2e (floor %.2e) dk %.2e dv "
          "%.2e\n",
          c.samples, c.tokens, c.heads, c.kv_heads, c.dim, static_cast<int>(c.layout), c.low_scores ? " low" : "",
          deterministic ? "det" : "acc", errors[0], errors[1], errors[2], floor, errors[3], errors[4]);
      // Roundings to bf16, each at most 2^-9 of its value: P and the output; P or dS, the output (through delta), and
      // the result. With groups each head's dk and dv are also rounded ahead of their sum.
      EXPECT_LT(errors[0], 2 * 0x1p-9);
      EXPECT_LT(errors[1], 1e-6);
      EXPECT_LT(errors[2], 2 * floor);
      EXPECT_LT(errors[3], 4 * 0x1p-9);
      EXPECT_LT(errors[4], 3 * 0x1p-9);
    }
  }
}

// Every other run competes with another stream for the multiprocessors.
TEST_F(CudaAttention, RepeatsBitForBit) {
  CudaStream stream, other;
  for (const AttentionCase& c : {AttentionCase{1, 200, 4, 2, 64}, {16, 1024, 12, 12, 64}, {2, 2048, 16, 4, 128}}) {
    SCOPED_TRACE(c.tokens);
    AttentionProblem p(stream, c), competitor(other, c);
    for (const bool deterministic : {true, false}) {
      std::set<std::string> fused, outs, statistics, dq;
      for (int i = 0; i < 12; ++i) {
        p.poison();
        for (int n = 0; n < 4 * (i % 2); ++n) competitor.run_forward();
        p.run_forward();
        p.run_backward(deterministic);
        const auto text = [](const std::vector<std::byte>& x) {
          return std::string(reinterpret_cast<const char*>(x.data()), x.size());
        };
        std::string gradients = text(p.d.fused.bytes()), of_q;
        // dq is allowed to vary in the accumulating form: cut it out, token by token.
        const auto row = static_cast<std::size_t>((c.heads + 2 * c.kv_heads) * c.dim * 2);
        const auto q_bytes = static_cast<std::size_t>(c.heads * c.dim * 2);
        for (std::size_t at = 0; at < gradients.size(); at += row) {
          of_q += gradients.substr(at, q_bytes);
          std::fill_n(gradients.begin() + static_cast<std::ptrdiff_t>(at), q_bytes, '\0');
        }
        fused.insert(gradients);
        dq.insert(of_q);
        outs.insert(text(p.out.bytes()));
        statistics.insert(text(p.lse.bytes()));
      }
      EXPECT_EQ(outs.size(), 1u);
      EXPECT_EQ(statistics.size(), 1u);
      EXPECT_EQ(fused.size(), 1u) << "dk or dv";
      if (deterministic) {
        EXPECT_EQ(dq.size(), 1u);
      }
      std::printf("[ repeats  ] S%ld %s: %zu results of dq in 12 runs\n", c.tokens, deterministic ? "det" : "acc",
                  dq.size());
    }
  }
}

TEST_F(CudaAttention, ReplaysWithOtherDataAndGivesTheBitsOfEagerRuns) {
  CudaStream stream;
  for (const AttentionCase& c : {AttentionCase{2, 200, 4, 2, 64}, {2, 333, 4, 4, 128}, {1, 2048, 16, 4, 128}}) {
    SCOPED_TRACE(c.tokens);
    AttentionProblem p(stream, c);
    const auto step = [&p] {
      p.run_forward();
      p.run_backward(true);
    };
    step();  // builds the plans
    for (const std::uint64_t seed : {3, 4}) {
      p.upload(seed);
      p.poison();
      step();
      const auto out = p.out.bytes(), lse = p.lse.bytes(), gradients = p.d.fused.bytes();
      p.poison();
      capture_and_replay(stream, 2, step);
      EXPECT_EQ(p.out.bytes(), out);
      EXPECT_EQ(p.lse.bytes(), lse);
      EXPECT_EQ(p.d.fused.bytes(), gradients);
    }
  }
}

TEST_F(CudaAttention, OnlySetsUpEachProblemOnce) {
  CudaStream stream;
  AttentionProblem p(stream, {2, 200, 4, 2, 64, Layout::kPacked});
  const auto run_all = [&p] {
    p.poison();
    p.run_forward();
    p.run_backward(true);
    return std::vector{p.out.values(), p.lse.values(), p.d.own_q.values(), p.d.own_k.values(), p.d.own_v.values()};
  };
  stream.only_set_up(true);
  const auto first = run_all();
  for (const auto& zeros : run_all()) EXPECT_EQ(zeros, std::vector<double>(zeros.size()));
  stream.only_set_up(false);
  EXPECT_EQ(run_all(), first);
}

TEST_F(CudaAttention, BuildsNoPlanUnderCapture) {
  CudaStream stream;
  AttentionProblem p(stream, {1, 128, 2, 2, 64});
  const AttentionForward op = p.forward();
  std::string message;
  capture_and_replay(stream, 0, [&] {
    try {
      run(stream, op);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  EXPECT_NE(message.find("run the step once before capturing it"), std::string::npos) << message;
}

TEST_F(CudaAttention, RefusesWhatCudnnCannotTake) {
  CudaStream stream;
  const auto refuse = [&stream](const Tensor& q, std::string_view part) {
    CudaBlock out(stream, q.shape, DType::kBf16), lse(stream, {q.size(0), q.size(2), q.size(1)}, DType::kFp32);
    try {
      run(stream, AttentionForward{.q = q, .k = q, .v = q, .out = out.tensor(), .lse = lse.tensor()});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
    }
  };
  CudaBlock odd(stream, {1, 64, 2, 12}, DType::kBf16), fits(stream, {1, 64, 2, 72}, DType::kBf16);
  refuse(odd.tensor(), "expected a multiple of 8 up to 256, got 12");
  refuse(fits.tensor().slice(3, 1, 64), "expected an address and strides that are multiples of 16 bytes");
}

}  // namespace
}  // namespace megalith::test
