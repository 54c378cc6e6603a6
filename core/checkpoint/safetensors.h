// The safetensors format: u64 LE length of the header, a JSON header
//   {"__metadata__": {"key": "text"}, "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// and the tensors' bytes back to back. A file may come from anywhere, so the reader believes nothing: see
// read_safetensors_header for what it refuses.
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
  std::string dtype;                // as stored, one of the known names
  std::vector<std::int64_t> shape;  // up to 8 dims
  std::uint64_t begin = 0;          // bytes, from the start of the data
  std::uint64_t end = 0;            // exclusive
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by position in the file
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;  // offset of the data in the file
};

std::string_view safetensors_name(DType dtype);                      // "F32", "BF16", "F64", "I32", "I64", "U8"
std::optional<DType> dtype_from_safetensors(std::string_view name);  // none: of the format, or of none, but not ours

// Refuses with kFormat: a header longer than 100,000,000 bytes or than the file, that does not start with '{' or is not
// strict JSON (strict_json.h), a name longer than 1 KiB, more than 1 M tensors or 8 dims, an unknown key or dtype, a
// size whose product overflows or differs from its offsets, offsets that do not start at 0, leave gaps, overlap, or do
// not end at the end of the file.
SafetensorsHeader read_safetensors_header(const File& file);
// The same from memory: `header` is the JSON, `data_bytes` what follows it.
SafetensorsHeader parse_safetensors_header(std::string_view header, std::uint64_t data_bytes, const std::string& path);

// Reads bytes [begin, end) of a file in blocks and hands each to `visit(offset from begin, block)`: bounded memory, and
// an error of the disk is an Error, where a mapped file would raise SIGBUS.
void read_blocks(const File& file, std::uint64_t begin, std::uint64_t end,
                 const std::function<void(std::uint64_t, std::span<const std::byte>)>& visit);

// Writes a file front to back: all entries are declared first, their bytes follow in that order.
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
    std::vector<std::uint64_t> entry_begin;  // from the start of the data; and the end of the last
    std::vector<Hash128> entry_hash;
  };

  SafetensorsWriter(File& file, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata);

  // The next bytes, of any number of entries or of a part of one. Hashed from this very memory.
  void write(std::span<const std::byte> bytes);
  // After the last byte; fails (kInternal) when bytes are missing. Does not sync.
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

// The number of bytes that such a file has, for the space preflight.
std::uint64_t safetensors_file_bytes(std::span<const SafetensorsWriter::Entry> entries,
                                     const std::map<std::string, std::string>& metadata);

}  // namespace megalith
