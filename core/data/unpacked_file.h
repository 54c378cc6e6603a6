// Reader of a user's file in sequence that unpacks gzip and Zstandard data. The first bytes decide, not the name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.h"

namespace megalith {

enum class Compression { kNone, kGzip, kZstandard };

constexpr std::size_t kCompressionBytes = 4;             // that compression_of needs
Compression compression_of(std::string_view beginning);  // of a file with these first bytes

// Decoder of one of the formats.
class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // Decodes bytes from the front of `in` to the front of `out` and removes both. Returns what is wrong with the data,
  // or nothing.
  virtual std::string_view unpack(std::span<const std::byte>& in, std::span<std::byte>& out) = 0;
  virtual bool is_complete() const = 0;  // a file may end here
};

// Memory holds one block, and the window of Zstandard data of at most 128 MiB.
class UnpackedFile {
 public:
  // Opens a file, pipe or device. Error kFileIo as for File::open_stream. Reads nothing.
  explicit UnpackedFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // Reads the next bytes; returns fewer than out.size() only at the end. Several compressed members in sequence are one
  // text. Damaged or incomplete data is an Error kFormat with the byte offset in the file.
  std::size_t read(std::span<std::byte> out);
  std::uint64_t bytes_read() const { return offset_; }  // of the file as it is stored

 private:
  bool fill();  // false at the end of the file
  void begin();

  File file_;
  std::vector<std::byte> block_;
  std::span<const std::byte> unread_;  // of the block
  std::unique_ptr<Unpacker> unpacker_;
  Compression compression_ = Compression::kNone;
  std::uint64_t offset_ = 0;  // of the end of the block in the file
  bool has_begun_ = false;
};

}  // namespace megalith
