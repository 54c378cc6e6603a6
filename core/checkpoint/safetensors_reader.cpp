#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/base/error.h"
#include "core/checkpoint/printable.h"
#include "core/checkpoint/safetensors.h"

namespace megalith {
namespace {

constexpr std::size_t kReadBlock = std::size_t{1} << 20;  // stays in the L2 cache between reading, hashing and copying
constexpr int kMaxNesting = 3;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  refuse_format(path + ": not a valid safetensors file: " + why, {}, {}, "it is damaged or not complete: get it again");
}

// Bits per element of every dtype that the format defines; 0 for an unknown name.
unsigned bits_of(std::string_view dtype) {
  struct Known {
    std::string_view name;
    unsigned bits;
  };
  static constexpr std::array<Known, 20> kKnown = {{
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"F64", 64}, {"I64", 64},    {"U64", 64},    {"C64", 64},
  }};
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

// Receives the header's tokens in order and accepts only the one structure that the format allows, so that no document
// tree of a hostile header is ever built.
class HeaderHandler {
 public:
  HeaderHandler(const std::string& path, SafetensorsHeader& out) : path_(path), out_(out) {}

  bool null() { reject("null"); }
  bool boolean(bool) { reject("a boolean"); }
  bool number_integer(std::int64_t) { reject("a negative number"); }
  bool number_float(double, const std::string&) { reject("a number that is not an unsigned 64-bit integer"); }
  bool binary(std::vector<std::uint8_t>&) { reject("binary data"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& text);
  bool key(std::string& name);
  bool start_object(std::size_t);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    refuse(path_, fmt::format("the header is not UTF-8 JSON at byte {}", position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum class Field { kNone, kDtype, kShape, kOffsets, kTensor, kMetadata, kMetadataText };

  [[noreturn]] void reject(std::string_view what) const {
    const std::string where = place_ == Place::kTop || place_ == Place::kStart || place_ == Place::kEnd ? "the header"
                              : place_ == Place::kMetadata                                              ? "__metadata__"
                                                           : "tensor " + printable(tensor_.name);
    refuse(path_, fmt::format("{} must not be in {} there", what, where));
  }
  void nest() {
    if (++depth_ > kMaxNesting) refuse(path_, fmt::format("nested deeper than {}", kMaxNesting));
  }
  void tensor_key(const std::string& name);
  void finish_tensor();

  const std::string& path_;
  SafetensorsHeader& out_;
  Place place_ = Place::kStart;
  Field field_ = Field::kNone;  // what the value that follows a key is for
  int depth_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::size_t offsets_ = 0;
  std::string metadata_key_;
  SafetensorsEntry tensor_;
  std::unordered_set<std::string> names_;
};

bool HeaderHandler::number_unsigned(std::uint64_t value) {
  if (place_ == Place::kShape) {
    if (tensor_.shape.size() == kMaxSafetensorsDims) {
      refuse(path_, fmt::format("tensor {} has more than {} dims", printable(tensor_.name), kMaxSafetensorsDims));
    }
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse(path_, fmt::format("tensor {} has a dim of {}", printable(tensor_.name), value));
    }
    tensor_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  if (place_ == Place::kOffsets && offsets_ < 2) {
    (offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
    ++offsets_;
    return true;
  }
  reject("a number");
}

bool HeaderHandler::string(std::string& text) {
  if (place_ == Place::kMetadata && field_ == Field::kMetadataText) {
    out_.metadata[metadata_key_] = std::move(text);
  } else if (place_ == Place::kTensor && field_ == Field::kDtype) {
    tensor_.dtype = std::move(text);
    if (bits_of(tensor_.dtype) == 0) {
      refuse(path_, fmt::format("tensor {} has unknown dtype {}", printable(tensor_.name), printable(tensor_.dtype)));
    }
  } else {
    reject("a string");
  }
  field_ = Field::kNone;
  return true;
}

void HeaderHandler::tensor_key(const std::string& name) {
  const auto once = [&](bool& seen, Field field) {
    if (seen) refuse(path_, fmt::format("tensor {} has {} twice", printable(tensor_.name), name));
    seen = true;
    field_ = field;
  };
  if (name == "dtype") return once(has_dtype_, Field::kDtype);
  if (name == "shape") return once(has_shape_, Field::kShape);
  if (name == "data_offsets") return once(has_offsets_, Field::kOffsets);
  refuse(path_, fmt::format("tensor {} has the unknown key {}", printable(tensor_.name), printable(name)));
}

bool HeaderHandler::key(std::string& name) {
  if (place_ == Place::kTensor) {
    tensor_key(name);
    return true;
  }
  if (place_ == Place::kMetadata) {
    if (out_.metadata.contains(name)) refuse(path_, fmt::format("__metadata__ has {} twice", printable(name)));
    metadata_key_ = std::move(name);
    field_ = Field::kMetadataText;
    return true;
  }
  if (name == "__metadata__") {
    if (has_metadata_) refuse(path_, "__metadata__ is there twice");
    has_metadata_ = true;
    field_ = Field::kMetadata;
    return true;
  }
  if (name.empty() || name.size() > kMaxSafetensorsName) {
    refuse(path_, fmt::format("a tensor's name has {} bytes, allowed are 1 to {}", name.size(), kMaxSafetensorsName));
  }
  if (names_.size() == kMaxSafetensorsTensors)
    refuse(path_, fmt::format("more than {} tensors", kMaxSafetensorsTensors));
  if (!names_.insert(name).second) refuse(path_, fmt::format("tensor {} is there twice", printable(name)));
  tensor_ = {};
  tensor_.name = std::move(name);
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_ = 0;
  field_ = Field::kTensor;
  return true;
}

bool HeaderHandler::start_object(std::size_t) {
  nest();
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
  } else if (place_ == Place::kTop && (field_ == Field::kTensor || field_ == Field::kMetadata)) {
    place_ = field_ == Field::kTensor ? Place::kTensor : Place::kMetadata;
  } else {
    reject("an object");
  }
  field_ = Field::kNone;
  return true;
}

bool HeaderHandler::end_object() {
  --depth_;
  if (place_ == Place::kTensor) finish_tensor();
  place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
  return true;
}

bool HeaderHandler::start_array(std::size_t) {
  nest();
  if (place_ != Place::kTensor || (field_ != Field::kShape && field_ != Field::kOffsets)) reject("an array");
  place_ = field_ == Field::kShape ? Place::kShape : Place::kOffsets;
  field_ = Field::kNone;
  return true;
}

bool HeaderHandler::end_array() {
  --depth_;
  if (place_ == Place::kOffsets && offsets_ != 2) {
    refuse(path_, fmt::format("tensor {} has {} data_offsets, not 2", printable(tensor_.name), offsets_));
  }
  place_ = Place::kTensor;
  return true;
}

void HeaderHandler::finish_tensor() {
  const std::string name = printable(tensor_.name);
  if (!has_dtype_ || !has_shape_ || !has_offsets_) {
    refuse(path_, fmt::format("tensor {} lacks dtype, shape or data_offsets", name));
  }
  std::uint64_t bits = bits_of(tensor_.dtype);
  for (const std::int64_t extent : tensor_.shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) {
      refuse(path_, fmt::format("the size of tensor {} overflows 64 bits", name));
    }
  }
  if (bits % 8 != 0) refuse(path_, fmt::format("tensor {} ends inside a byte", name));
  if (tensor_.end < tensor_.begin || tensor_.end - tensor_.begin != bits / 8) {
    refuse(path_, fmt::format("tensor {} has {} bytes by its shape but offsets {} to {}", name, bits / 8, tensor_.begin,
                              tensor_.end));
  }
  out_.entries.push_back(std::move(tensor_));
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
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp64, DType::kInt32, DType::kInt64, DType::kUint8}) {
    if (safetensors_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

DType dtype_of(const SafetensorsEntry& entry, const std::string& path) {
  if (const auto dtype = dtype_from_safetensors(entry.dtype)) return *dtype;
  refuse_format(fmt::format("{}: tensor {}", path, printable(entry.name)), "dtype F32, BF16, F64, I32, I64 or U8",
                entry.dtype, "convert the tensor first");
}

SafetensorsHeader parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path) {
  if (header.empty() || header.front() != '{') refuse(path, "the header does not start with '{'");
  // The JSON library takes a NUL for the end of its input and would accept anything after it.
  if (header.find('\0') != std::string_view::npos) refuse(path, "the header contains a NUL byte");
  SafetensorsHeader out;
  HeaderHandler handler(path, out);
  nlohmann::json::sax_parse(header, &handler);
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
