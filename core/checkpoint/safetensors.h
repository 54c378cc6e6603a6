// Safetensors format (Hugging Face): u64 LE length of the header, a JSON header
//   {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// and the tensors' bytes without gaps. Files are untrusted: read_safetensors_header lists what the reader rejects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.h"
#include "core/checkpoint/hash.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace megalith {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::size_t kMaxSafetensorsTensors = 1'000'000;
inline constexpr std::size_t kMaxSafetensorsDims = 8;
inline constexpr std::size_t kMaxSafetensorsName = 1024;  // bytes

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // stored name, one of the format's dtypes
  std::vector<std::int64_t> shape;  // up to 8 dims
  std::uint64_t begin = 0;          // bytes from the start of the data
  std::uint64_t end = 0;            // exclusive
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in file order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;  // offset of the data in the file
};

std::string_view safetensors_name(DType dtype);                      // "F32", "BF16", "F64", "I32", "I64", "U8"
std::optional<DType> dtype_from_safetensors(std::string_view name);  // none: a dtype without a DType, or unknown

// Reads and checks a header. The header must be strict JSON (strict_json.h), start with '{' and have at most
// 100,000,000 bytes. Other violations are names above 1 KiB, more than 1 M tensors or 8 dims, and unknown keys or
// dtypes. Sizes must not overflow or contradict offsets. Offsets must start at 0, end at the end of the file, and have
// no gaps or overlaps. Error kFormat.
SafetensorsHeader read_safetensors_header(const File& file);
// Parses a header from memory: `header` is the JSON, `data_bytes` the size of the data after it.
SafetensorsHeader parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path);

// Reads bytes [begin, end) of a file in blocks and calls `visit(offset from begin, block)`. Memory is bounded.
// An error of the disk is an Error, while a mapped file would raise SIGBUS.
void read_blocks(const File& file, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit);

// Writer of a file from front to back: entries are declared first, and their bytes follow in that order.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kFp32;
    std::vector<std::int64_t> shape;
  };
  struct Written {
    std::uint64_t file_bytes = 0;
    Hash128 file_hash;
    std::vector<std::uint64_t> entry_begin;  // from the start of the data; the last one is the end
    std::vector<Hash128> entry_hash;
  };

  SafetensorsWriter(File& file, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata);

  // Writes the next bytes, which may span entries or be a part of one. Hashes the same memory.
  void write(std::span<const std::byte> bytes);
  // Ends the file; fails (kInternal) if bytes are missing. Does not sync.
  Written finish();

 private:
  void close_full_entries();

  File& file_;
  std::vector<Entry> entries_;
  Written written_;
  std::size_t current_ = 0;  // entry being written
  std::uint64_t at_ = 0;     // bytes of data so far
  Hasher file_hasher_;
  Hasher entry_hasher_;
};

// Returns the size of a file in bytes, for the check of free space.
std::uint64_t safetensors_file_bytes(std::span<const SafetensorsWriter::Entry> entries,
                                     const std::map<std::string, std::string>& metadata);

}  // namespace megalith
