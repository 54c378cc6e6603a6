#include "tests/support/op_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/tensor/bf16.h"

namespace megalith::test {

namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};

double element(const std::byte* address, DType type) {
  const auto read = [address](auto value) {
    std::memcpy(&value, address, sizeof(value));
    return value;
  };
  switch (type) {
    case DType::kFp32: return read(float{});
    case DType::kBf16: return to_float(read(bf16{}));
    case DType::kFp64: return read(double{});
    case DType::kInt32: return read(std::int32_t{});
    case DType::kInt64: return static_cast<double>(read(std::int64_t{}));
    case DType::kUint8: return read(std::uint8_t{});
  }
  return 0;
}

void set_element(std::byte* address, DType type, double value) {
  const auto write = [address](auto rounded) { std::memcpy(address, &rounded, sizeof(rounded)); };
  switch (type) {
    case DType::kFp32: return write(static_cast<float>(value));
    case DType::kBf16: return write(to_bf16(static_cast<float>(value)));
    case DType::kFp64: return write(value);
    case DType::kInt32: return write(static_cast<std::int32_t>(value));
    case DType::kInt64: return write(static_cast<std::int64_t>(value));
    case DType::kUint8: return write(static_cast<std::uint8_t>(value));
  }
}

// Calls visit(i, offset in elements) for each element in logical order.
template <class Visit>
void for_each_element(const Tensor& tensor, Visit&& visit) {
  const std::int64_t count = tensor.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (int d = tensor.rank() - 1; d >= 0; --d) {
      offset += rest % tensor.size(d) * tensor.stride(d);
      rest /= tensor.size(d);
    }
    visit(i, offset);
  }
}

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  for (DType dtype : {DType::kFp32, DType::kBf16}) cases.push_back({DeviceType::kCpu, dtype});
  return cases;
}

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
  pool_ = std::make_unique<MemoryPool>(device());
  stream_ = std::make_unique<Stream>(device(), "test");
}

Values OpTest::normal(std::int64_t count, double deviation) {
  std::normal_distribution<double> distribution(0, deviation);
  Values result(static_cast<std::size_t>(count));
  for (double& value : result) value = distribution(random_);
  return result;
}

void* OpTest::add_buffer(const void* bytes, std::size_t count, Use use) {
  const std::size_t total = count + 2 * kGuardBytes;
  auto* begin = static_cast<std::byte*>(pool_->allocate(total, MemoryCategory::kOther, "test"));
  const std::vector<std::byte> guards(total, kGuard);
  upload(begin, guards.data(), total);
  const auto* first = static_cast<const std::byte*>(bytes);
  buffers_.push_back({begin + kGuardBytes, std::vector<std::byte>(first, first + count), use});
  upload(buffers_.back().address, bytes, count);
  return buffers_.back().address;
}

Tensor OpTest::make(const Shape& shape, DType type, const Values& given, Use use) {
  EXPECT_EQ(static_cast<std::int64_t>(given.size()), shape.numel());
  std::vector<std::byte> bytes(given.size() * size_of(type));
  for (std::size_t i = 0; i < given.size(); ++i) set_element(bytes.data() + i * size_of(type), type, given[i]);
  return Tensor(add_buffer(bytes.data(), bytes.size(), use), type, shape);
}

Tensor OpTest::input(const Shape& shape, DType type, double deviation) {
  return make(shape, type, normal(shape.numel(), deviation), Use::kInput);
}

Tensor OpTest::input(const Shape& shape, DType type, const Values& given) {
  return make(shape, type, given, Use::kInput);
}

Tensor OpTest::inout(const Shape& shape, DType type, const Values& given) {
  return make(shape, type, given, Use::kInout);
}

// All bits set is NaN in every floating type and -1 in every signed one.
Tensor OpTest::output(const Shape& shape, DType type) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>(shape.numel()) * size_of(type), std::byte{0xFF});
  return Tensor(add_buffer(bytes.data(), bytes.size(), Use::kInout), type, shape);
}

void OpTest::upload(void* device, const void* host, std::size_t bytes) {
  copy_from_host(*stream_, device, host, bytes);
  stream_->synchronize();
}

void OpTest::download(void* host, const void* device, std::size_t bytes) {
  copy_to_host(*stream_, host, device, bytes);
  stream_->synchronize();
}

void OpTest::reset() {
  for (const Buffer& buffer : buffers_) upload(buffer.address, buffer.initial.data(), buffer.initial.size());
}

std::vector<std::vector<std::byte>> OpTest::snapshot() {
  std::vector<std::vector<std::byte>> contents;
  for (const Buffer& buffer : buffers_) {
    contents.emplace_back(buffer.initial.size());
    download(contents.back().data(), buffer.address, contents.back().size());
  }
  return contents;
}

void OpTest::run_twice(const Access& accesses, const std::function<void(Stream&)>& enqueue) {
  reset();
  enqueue(*stream_);
  stream_->synchronize();
  expect_only_declared_writes(accesses);
  expect_guards();
  const auto eager = snapshot();

  reset();
  const auto fresh = snapshot();
  Graph graph("test");
  graph.begin_capture(*stream_);
  enqueue(*stream_);
  graph.end_capture();
  ASSERT_GE(graph.num_ops(), 1);
  EXPECT_EQ(snapshot(), fresh) << "capture ran the op instead of recording it";
  graph.replay(*stream_);
  stream_->synchronize();
  EXPECT_EQ(graph.num_replays(), 1);
  EXPECT_EQ(snapshot(), eager) << "a replay differs from the eager run";
  expect_guards();
}

void OpTest::expect_only_declared_writes(const Access& accesses) {
  const auto contents = snapshot();
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const Buffer& buffer = buffers_[b];
    std::vector<bool> declared(buffer.initial.size());
    for (const AccessRange& range : accesses.ranges()) {
      if (!range.write) continue;
      const auto* begin = static_cast<const std::byte*>(range.begin);
      const auto* first = std::max(begin, static_cast<const std::byte*>(buffer.address));
      const auto* last = std::min<const std::byte*>(begin + range.bytes, buffer.address + buffer.initial.size());
      for (const auto* p = first; p < last; ++p) declared[static_cast<std::size_t>(p - buffer.address)] = true;
    }
    for (std::size_t i = 0; i < buffer.initial.size(); ++i) {
      if (contents[b][i] == buffer.initial[i]) continue;
      ASSERT_EQ(buffer.use, Use::kInout) << "an input was written";
      ASSERT_TRUE(declared[i]) << "byte " << i << " of buffer " << b << " was written and is not in access()";
    }
  }
}

void OpTest::expect_guards() {
  std::vector<std::byte> guard(kGuardBytes);
  for (const Buffer& buffer : buffers_) {
    for (const std::byte* begin : {buffer.address - kGuardBytes, buffer.address + buffer.initial.size()}) {
      download(guard.data(), begin, kGuardBytes);
      ASSERT_TRUE(std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; }))
          << "written outside of a tensor";
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

void OpTest::expect_error(const std::function<void(Stream&)>& enqueue, ExitCode code, std::string_view part) {
  reset();
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
    // Kernels may flush what is below the smallest normal number to zero.
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
