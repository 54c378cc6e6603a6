#include "tests/support/op_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/graph.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/elements.h"

namespace megalith::test {

namespace {

constexpr std::byte kGuard{0xA5};

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const OpCase& c : op_cases(dtype)) cases.push_back(c);
  }
  return cases;
}

std::vector<OpCase> op_cases(DType dtype) {
  std::vector<OpCase> cases = {{DeviceType::kCpu, dtype}};
  if (cuda_built()) cases.push_back({DeviceType::kCuda, dtype});
  return cases;
}

std::string missing(DeviceType device) { return device == DeviceType::kCuda ? cuda_unavailable() : ""; }

std::string name_of_case(const testing::TestParamInfo<OpCase>& info) {
  return std::string(name_of(info.param.device)) + "_" + std::string(name_of(info.param.dtype));
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return 0x1p-8;
    case DType::kFp32: return 0x1p-24;
    case DType::kFp64: return 0x1p-53;
    default: return 0;
  }
}

double tolerance(DType stored, std::int64_t length, DType accumulator) {
  return 2 * unit_roundoff(stored) + (4 + std::sqrt(static_cast<double>(length))) * unit_roundoff(accumulator);
}

void OpTest::SetUp() {
  const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(info.test_suite_name()) + "." + info.name();
  std::seed_seq seed(name.begin(), name.end());
  random_.seed(seed);
  if (const std::string reason = missing(device()); !reason.empty()) GTEST_SKIP() << reason;
  pool_ = std::make_unique<MemoryPool>(device());
  stream_ = std::make_unique<Stream>(device(), "test");
}

Values OpTest::normal(std::int64_t count, double deviation) {
  std::normal_distribution<double> distribution(0, deviation);
  Values result(static_cast<std::size_t>(count));
  for (double& value : result) value = distribution(random_);
  return result;
}

void* OpTest::add_buffer(const void* bytes, std::size_t count, DType type, Use use) {
  std::vector<std::byte> initial(count + 2 * kGuardBytes, kGuard);
  if (count > 0) std::memcpy(initial.data() + kGuardBytes, bytes, count);
  auto* begin = static_cast<std::byte*>(pool_->allocate(initial.size(), MemoryCategory::kOther, "test"));
  upload(begin, initial.data(), initial.size());
  buffers_.push_back({begin, std::move(initial), type, use});
  return begin + kGuardBytes;
}

Tensor OpTest::make(const Shape& shape, DType type, const Values& given, Use use) {
  EXPECT_EQ(static_cast<std::int64_t>(given.size()), shape.numel());
  std::vector<std::byte> bytes(given.size() * size_of(type));
  for (std::size_t i = 0; i < given.size(); ++i) set_element(bytes.data() + i * size_of(type), type, given[i]);
  return Tensor(add_buffer(bytes.data(), bytes.size(), type, use), type, shape);
}

Tensor OpTest::input(const Shape& shape, DType type, double deviation) {
  return make(shape, type, normal(shape.numel(), deviation), Use::kInput);
}

Tensor OpTest::input(const Shape& shape, DType type, const Values& given) {
  return make(shape, type, given, Use::kInput);
}

Tensor OpTest::input(const Shape& shape, DType type, std::initializer_list<double> given) {
  return input(shape, type, Values(given));
}

Tensor OpTest::inout(const Shape& shape, DType type, const Values& given) {
  return make(shape, type, given, Use::kInout);
}

// All bits set is NaN in every floating type and -1 in every signed one.
Tensor OpTest::output(const Shape& shape, DType type) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(shape.numel()) * size_of(type), std::byte{0xFF});
  return Tensor(add_buffer(bytes.data(), bytes.size(), type, Use::kInout), type, shape);
}

Tensor OpTest::workspace(std::int64_t bytes) {
  if (!workspace_ || workspace_.numel() < bytes) {
    void* const memory = pool_->allocate(static_cast<std::size_t>(bytes), MemoryCategory::kOther, "workspace");
    workspace_ = Tensor(memory, DType::kUint8, {bytes});
    launch(*stream_, Fill{.x = workspace_, .value = 0xFF});
  }
  return workspace_.slice(0, 0, bytes);
}

void OpTest::upload(void* device, const void* host, std::size_t bytes) {
  copy_from_host(*stream_, device, host, bytes);
  stream_->synchronize();
}

void OpTest::download(void* host, const void* device, std::size_t bytes) {
  copy_to_host(*stream_, host, device, bytes);
  stream_->synchronize();
}

void OpTest::restore(const Contents& contents) {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    if (contents[b].empty()) continue;
    if (device() == DeviceType::kCpu) {  // nothing is in flight
      std::memcpy(buffers_[b].address, contents[b].data(), contents[b].size());
    } else {
      copy_from_host(*stream_, buffers_[b].address, contents[b].data(), contents[b].size());
    }
  }
  stream_->synchronize();
}

OpTest::Contents OpTest::initial() const {
  Contents contents;
  for (const Buffer& buffer : buffers_) contents.push_back(buffer.initial);
  return contents;
}

OpTest::Contents OpTest::snapshot(const Contents& of) {
  stream_->synchronize();
  Contents contents(buffers_.size());
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    contents[b].resize(of[b].size());
    if (contents[b].empty()) continue;
    if (device() == DeviceType::kCpu) {
      std::memcpy(contents[b].data(), buffers_[b].address, contents[b].size());
    } else {
      copy_to_host(*stream_, contents[b].data(), buffers_[b].address, contents[b].size());
    }
  }
  stream_->synchronize();
  return contents;
}

void OpTest::run_all(const Access& accesses, const Enqueue& enqueue, const Idles& idle) {
  const Contents before = initial();
  restore(before);
  enqueue(*stream_);
  const Contents eager = snapshot(before);
  expect_only_declared_writes(accesses, eager);
  expect_declared_reads(accesses, enqueue, {before, eager}, idle);

  restore(before);
  Graph graph("test");
  graph.begin_capture(*stream_);
  enqueue(*stream_);
  graph.end_capture();
  ASSERT_GE(graph.num_ops(), 1);
  ASSERT_EQ(snapshot(before), before) << "capture ran the op instead of recording it";
  graph.replay(*stream_);
  stream_->synchronize();
  EXPECT_EQ(graph.num_replays(), 1);
  EXPECT_EQ(snapshot(before), eager) << "a replay differs from the eager run";
}

// Guards belong to no tensor, so a declared range that reaches into them does not excuse a write there.
void OpTest::expect_only_declared_writes(const Access& accesses, const Contents& contents) {
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    if (contents[b] == buffer.initial) continue;
    ASSERT_EQ(buffer.use, Use::kInout) << "an input was written";
    const std::byte* first = buffer.address + kGuardBytes;
    const std::byte* last = buffer.address + buffer.initial.size() - kGuardBytes;
    const auto declared = [&](const std::byte* p) {
      if (p < first || p >= last) return false;
      for (const AccessRange& range : accesses.ranges()) {
        const auto* begin = static_cast<const std::byte*>(range.begin);
        if (range.write && p >= begin && p < begin + range.bytes) return true;
      }
      return false;
    };
    for (std::size_t i = 0; i < buffer.initial.size(); ++i) {
      if (contents[b][i] == buffer.initial[i]) continue;
      ASSERT_TRUE(declared(buffer.address + i))
          << "byte " << static_cast<std::ptrdiff_t>(i - kGuardBytes) << " of a tensor of " << last - first
          << " bytes was written and is not in access()";
    }
  }
}

void OpTest::expect_refusal(const std::function<void()>& call, std::string_view part) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected an error with \"" << part << "\"";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos) << error.what();
  }
}

void OpTest::expect_error(const Enqueue& enqueue, ExitCode code, std::string_view part) {
  restore(initial());
  expect_refusal(
      [&] {
        try {
          enqueue(*stream_);
          stream_->synchronize();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), code);
          throw;
        }
      },
      part);
}

Values OpTest::values(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.extent_bytes());
  download(bytes.data(), tensor.data, bytes.size());
  Values result(static_cast<std::size_t>(tensor.numel()));
  for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
    const auto at = static_cast<std::size_t>(offset) * size_of(tensor.dtype);
    result[static_cast<std::size_t>(i)] = element(bytes.data() + at, tensor.dtype);
  });
  return result;
}

void OpTest::expect_untouched(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  for (const Buffer& buffer : buffers_) {
    const auto* begin = tensor.as<const std::byte>();
    if (begin < buffer.address || begin >= buffer.address + buffer.initial.size()) continue;
    const std::int64_t base = begin - buffer.address;
    std::vector<std::byte> bytes(tensor.extent_bytes());
    download(bytes.data(), begin, bytes.size());
    for_each_element(tensor, [&](std::int64_t i, std::int64_t offset) {
      const std::size_t size = size_of(tensor.dtype);
      const std::size_t at = static_cast<std::size_t>(offset) * size;
      EXPECT_EQ(std::memcmp(bytes.data() + at, buffer.initial.data() + static_cast<std::size_t>(base) + at, size), 0)
          << "element " << i << " changed";
    });
    return;
  }
  FAIL() << "not a tensor of this test";
}

void OpTest::expect_close(const Tensor& got, const Values& want, const Comparison& comparison) {
  const Values result = values(got);
  ASSERT_EQ(result.size(), want.size()) << comparison.what;
  if (!comparison.magnitude.empty()) {
    ASSERT_EQ(comparison.magnitude.size(), want.size());
  }
  const double relative = tolerance(got.dtype, comparison.length, comparison.accumulator);
  std::size_t wrong = 0;
  std::size_t worst = 0;
  double worst_ratio = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double magnitude = comparison.magnitude.empty() ? 0 : comparison.magnitude[i];
    // Kernels may flush values below the smallest normal number to zero.
    const double allowed = relative * std::max(std::abs(want[i]), magnitude) + std::numeric_limits<float>::min();
    const double error = std::abs(result[i] - want[i]);
    const bool same = result[i] == want[i] || (std::isnan(result[i]) && std::isnan(want[i]));
    if (same || error <= allowed) continue;
    ++wrong;
    const double ratio = std::isfinite(error) ? error / allowed : std::numeric_limits<double>::infinity();
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = i;
    }
  }
  EXPECT_EQ(wrong, 0u) << comparison.what << ": " << wrong << " of " << want.size() << " differ; worst at " << worst
                       << ": got " << (result.empty() ? 0 : result[worst]) << ", want "
                       << (want.empty() ? 0 : want[worst]) << ", " << worst_ratio << " times the tolerance";
}

}  // namespace megalith::test
