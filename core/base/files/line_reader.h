// Reader of a user file's lines. The file may be a pipe or an endless device. Memory holds one line and a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

class LineReader {
 public:
  struct Limits {
    std::size_t line_bytes;
    std::uint64_t file_bytes = std::numeric_limits<std::uint64_t>::max();
  };
  struct Line {
    std::string_view text;  // without the newline; valid until the next call
    bool is_too_long;       // `text` holds the first line_bytes bytes
  };

  // Opens a file. Error kFileIo if it is unreadable, such as a folder or a pipe without a writer.
  // Error kFormat for a file longer than file_bytes, here or once that many bytes were read.
  LineReader(const std::string& path, const Limits& limits);

  // Reads the next bytes of a file; returns fewer than the span's only at the end.
  using Source = std::function<std::size_t(std::span<std::byte>)>;
  LineReader(std::string path, Source source, const Limits& limits);

  const std::string& path() const { return path_; }
  std::string_view beginning(std::size_t bytes);  // of the unread text; fewer bytes at the end
  std::optional<Line> next();                     // none: end of file
  // Returns whether the last line ends in a newline; a truncated file's last line has none.
  // If the line is too long, this call reads up to its end and invalidates `text`.
  bool has_end();
  std::int64_t number() const { return number_; }  // of the last line, from 1

 private:
  std::string_view held() const { return std::string_view(buffer_).substr(begin_, end_ - begin_); }
  void check_size(std::uint64_t bytes) const;
  bool fill();       // reads one block; false at the end
  bool skip_line();  // false if the file ends first

  std::string path_;
  Source source_;
  Limits limits_;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // range of the unconsumed bytes
  std::uint64_t bytes_read_ = 0;
  std::int64_t number_ = 0;
  bool has_end_ = true;
  bool skips_ = false;  // the rest of a too long line comes next
};

}  // namespace megalith
