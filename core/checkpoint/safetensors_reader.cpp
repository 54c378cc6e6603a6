#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"

namespace megalith {
namespace {

using nlohmann::json;

constexpr std::size_t kReadBlock = std::size_t{1} << 20;  // stays in the L2 cache between reading, hashing and copying
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMaxMemberValues = std::size_t{1} << 20;  // far beyond a tensor; also bounds metadata

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  refuse_format(path + ": not a valid safetensors file: " + why, {}, {}, "it is damaged or not complete: get it again");
}

// Returns the bits per element of a dtype of the format; 0 for an unknown name.
unsigned bits_of(std::string_view dtype) {
  static constexpr std::pair<std::string_view, unsigned> kKnown[] = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"F64", 64}, {"I64", 64},    {"U64", 64},    {"C64", 64},
  };
  const auto* const found = std::ranges::find(kKnown, dtype, &std::pair<std::string_view, unsigned>::first);
  return found == std::end(kKnown) ? 0 : found->second;
}

SafetensorsEntry read_entry(const std::string& name, const json& value, const std::string& path) {
  if (name.empty() || name.size() > kMaxSafetensorsName)
    refuse(path, fmt::format("a tensor's name has {} bytes, allowed are 1 to {}", name.size(), kMaxSafetensorsName));
  const std::string subject = path + ": tensor " + printable(name);
  JsonObject object(value, subject);
  SafetensorsEntry entry{.name = name, .dtype = object.text("dtype", 16), .shape = {}};
  std::uint64_t bits = bits_of(entry.dtype);
  if (bits == 0) refuse_content(subject, "a dtype of the format", printable(entry.dtype));
  for (const json& extent : object.array("shape")) {
    entry.shape.push_back(json_integer(extent, 0, kMaxInt, subject + ": shape"));
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(entry.shape.back()), &bits))
      refuse_content(subject + ": shape", "a size within 64 bits", "more");
  }
  if (entry.shape.size() > kMaxSafetensorsDims)
    refuse_content(subject + ": shape", fmt::format("at most {} dims", kMaxSafetensorsDims), "more");
  if (bits % 8 != 0) refuse_content(subject, "whole bytes", fmt::format("{} bits", bits));
  const json& offsets = object.array("data_offsets");
  if (offsets.size() != 2) refuse_content(subject, "2 data_offsets", std::to_string(offsets.size()));
  entry.begin = static_cast<std::uint64_t>(json_integer(offsets[0], 0, kMaxInt, subject + ": data_offsets"));
  entry.end = static_cast<std::uint64_t>(json_integer(offsets[1], 0, kMaxInt, subject + ": data_offsets"));
  object.finish();
  if (entry.end < entry.begin || entry.end - entry.begin != bits / 8) {
    refuse(path, fmt::format("tensor {} has {} bytes by its shape but offsets {} to {}", printable(name), bits / 8,
                             entry.begin, entry.end));
  }
  return entry;
}

void check_contiguous(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& path) {
  std::uint64_t expected = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != expected) {
      refuse(path,
             fmt::format("tensor {} starts at byte {}, expected {}: offsets must start at 0 without gap or overlap",
                         printable(entry.name), entry.begin, expected));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    refuse(path, fmt::format("the tensors take {} bytes but {} follow the header", expected, data_bytes));
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kFp32: return "F32";
    case DType::kBf16: return "BF16";
    case DType::kFp64: return "F64";
    case DType::kInt32: return "I32";
    case DType::kInt64: return "I64";
    case DType::kUint8: return "U8";
  }
  return "?";
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DType dtype : kDTypes) {
    if (safetensors_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

SafetensorsHeader parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path) {
  if (header.empty() || header.front() != '{') refuse(path, "the header does not start with '{'");
  SafetensorsHeader out;
  for_each_member(header, path, kMaxMemberValues, [&](const std::string& name, const json& value) {
    if (name == "__metadata__") {
      out.metadata = json_texts(value, kMaxSafetensorsHeader, path + ": __metadata__");
      return;
    }
    if (out.entries.size() == kMaxSafetensorsTensors)
      refuse(path, fmt::format("more than {} tensors", kMaxSafetensorsTensors));
    out.entries.push_back(read_entry(name, value, path));
  });
  std::stable_sort(out.entries.begin(), out.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;  // empty tensors first
  });
  check_contiguous(out, data_bytes, path);
  return out;
}

SafetensorsHeader read_safetensors_header(const File& file) {
  if (file.size() < 8) refuse(file.path(), fmt::format("it has {} bytes, less than the length field", file.size()));
  std::array<std::byte, 8> raw;
  file.read_at(0, raw);
  static_assert(std::endian::native == std::endian::little);
  const auto length = std::bit_cast<std::uint64_t>(raw);
  if (length > kMaxSafetensorsHeader || length > file.size() - 8) {
    refuse(file.path(), fmt::format("a header of {} bytes is announced, allowed are {} and {} follow", length,
                                    kMaxSafetensorsHeader, file.size() - 8));
  }
  std::string text(length, '\0');
  file.read_at(8, std::as_writable_bytes(std::span(text)));
  SafetensorsHeader header = parse_safetensors_header(text, file.size() - 8 - length, file.path());
  header.data_start = 8 + length;
  return header;
}

void read_blocks(const File& file, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit) {
  std::vector<std::byte> block(static_cast<std::size_t>(std::min<std::uint64_t>(kReadBlock, end - begin)));
  for (std::uint64_t at = begin; at < end;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), end - at));
    const auto part = std::span(block).first(count);
    file.read_at(at, part);
    visit(at - begin, part);
    at += count;
  }
}

}  // namespace megalith
