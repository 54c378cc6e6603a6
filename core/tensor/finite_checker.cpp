#include "core/tensor/finite_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/device/copy.h"
#include "core/tensor/bf16.h"
#include "core/tensor/dtype.h"

namespace megalith {

namespace {

bool is_float(int dtype) {
  return dtype == static_cast<int>(DType::kFp32) || dtype == static_cast<int>(DType::kBf16) ||
         dtype == static_cast<int>(DType::kFp64);
}

double load(const std::byte* at, DType dtype) {
  const auto read = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  if (dtype == DType::kFp64) return read(double{});
  if (dtype == DType::kFp32) return static_cast<double>(read(float{}));
  return static_cast<double>(to_float(read(bf16{})));
}

std::string written(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

// Returns the offset, in elements, of the `index`-th element of a strided view.
std::int64_t offset_of(const AccessRange& range, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::size_t d = range.sizes.size(); d-- > 0;) {
    offset += index % range.sizes[d] * range.strides[d];
    index /= range.sizes[d];
  }
  return offset;
}

}  // namespace

std::string to_string(const NonFinite& found) {
  return fmt::format("{} {} {} {} \"{}\" ({}, element {} of {}, {} not finite)", found.op,
                     found.input ? "read" : "wrote", found.value, found.input ? "from" : "to",
                     found.tensor.empty() ? "unnamed" : found.tensor, found.dtype, found.element, found.elements,
                     found.count);
}

FiniteChecker::FiniteChecker() {
  observer_.before = [this](Stream& stream, const Access& access) { before(stream, access); };
}

void FiniteChecker::start(std::function<std::string(const void*)> name_of) {
  name_of_ = std::move(name_of);
  seen_ = 0;
  place_.clear();
  last_.reset();
  found_.reset();
  observer_.active = true;
}

std::optional<NonFinite> FiniteChecker::stop() {
  check_last();
  cancel();
  return found_;
}

void FiniteChecker::cancel() {
  observer_.active = false;
  last_.reset();
}

void FiniteChecker::before(Stream& stream, const Access& access) {
  check_last();
  ++seen_;
  if (found_) return;
  Op op{.stream = &stream, .name = std::string(access.name()), .place = place_, .ranges = {}};
  for (const AccessRange& range : access.ranges()) {
    if (is_float(range.dtype)) op.ranges.emplace_back(range, name_of_(range.begin));
  }
  last_ = std::move(op);
}

void FiniteChecker::check_last() {
  if (!last_) return;
  observer_.active = false;  // ignores the copies below
  const Op op = std::move(*last_);
  last_.reset();
  op.stream->synchronize();
  if (find(op, true)) {
    const NonFinite output = *found_;
    // A non-finite input is the better report, unless the op overwrote it.
    if (!find(op, false)) found_ = output;
  }
  observer_.active = true;
}

const std::byte* FiniteChecker::on_host(const Op& op, const void* begin, std::size_t bytes) {
  if (op.stream->device() == DeviceType::kCpu) return static_cast<const std::byte*>(begin);
  staging_.resize(bytes);
  copy_to_host(*op.stream, staging_.data(), begin, bytes);
  op.stream->synchronize();
  return staging_.data();
}

std::int64_t FiniteChecker::expert_of(const Op& op, const AccessRange& range, std::int64_t element,
                                      std::int64_t elements) {
  const auto& [experts, rows, offsets] = range.experts;
  if (experts < 2) return -1;
  const std::int64_t row = element / (elements / rows);
  if (offsets == nullptr) return row / (rows / experts);
  const auto entries = static_cast<std::size_t>(experts + 1);
  std::vector<std::int32_t> ends(entries);
  std::memcpy(ends.data(), on_host(op, offsets, entries * sizeof(std::int32_t)), entries * sizeof(std::int32_t));
  const auto end = std::upper_bound(ends.begin() + 1, ends.end(), row);
  return end == ends.end() ? -1 : end - ends.begin() - 1;
}

// Returns whether a tensor that the op writes (or reads) is not finite; found_ is then the first.
bool FiniteChecker::find(const Op& op, bool writes) {
  for (const auto& [range, name] : op.ranges) {
    if (range.write != writes) continue;
    const auto overwrites = [begin = range.begin](const auto& other) {
      return other.first.write && other.first.begin == begin;
    };
    if (!writes && std::any_of(op.ranges.begin(), op.ranges.end(), overwrites)) continue;
    const auto dtype = static_cast<DType>(range.dtype);
    std::int64_t elements = range.sizes.empty() ? static_cast<std::int64_t>(range.bytes / size_of(dtype)) : 1;
    for (const std::int64_t size : range.sizes) elements *= size;
    const std::int64_t all_elements = elements;
    if (const RowsOfExperts& experts = range.experts; experts.offsets != nullptr) {
      std::int32_t used = 0;  // rows past this belong to no expert
      std::memcpy(&used, on_host(op, experts.offsets + experts.experts, sizeof(used)), sizeof(used));
      elements = elements / experts.rows * used;
    }
    const std::byte* const data = on_host(op, range.begin, range.bytes);
    NonFinite found{.ordinal = seen_ - 1, .place = op.place, .op = op.name, .tensor = name, .input = !writes};
    for (std::int64_t i = 0; i < elements; ++i) {
      const std::int64_t offset = range.sizes.empty() ? i : offset_of(range, i);
      const double value = load(data + static_cast<std::size_t>(offset) * size_of(dtype), dtype);
      if (std::isfinite(value) || found.count++ > 0) continue;
      found.value = written(value);
      found.element = i;
    }
    if (found.count == 0) continue;
    found.elements = elements;
    found.expert = expert_of(op, range, found.element, all_elements);
    found.dtype = name_of(dtype);
    found_ = std::move(found);
    return true;
  }
  return false;
}

}  // namespace megalith
