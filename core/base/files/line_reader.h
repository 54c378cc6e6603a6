// The lines of a file of a user, which may be a pipe or a device without an end. Memory holds one line and a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/files/file.h"

namespace megalith {

class LineReader {
 public:
  struct Limits {
    std::size_t line_bytes;
    std::uint64_t file_bytes = std::numeric_limits<std::uint64_t>::max();
  };
  struct Line {
    std::string_view text;  // without its end; valid until the next call
    bool is_too_long;       // `text` is its first line_bytes bytes
  };

  // Error kFileIo for what cannot be read, such as a folder or a pipe that nobody writes to; kFormat for a file that
  // has more than file_bytes, here or when that many were read.
  LineReader(const std::string& path, const Limits& limits);

  const std::string& path() const { return file_.path(); }
  std::string_view beginning(std::size_t bytes);  // of what is still to come; fewer at the end
  std::optional<Line> next();                     // none: the end
  // Whether the line that `next` gave last ends in a newline: not the last line of a file that breaks off. Of a line
  // that is too long this reads on, up to its end, and `text` is valid no more.
  bool has_end();
  std::int64_t number() const { return number_; }  // of the line that `next` gave last, from 1

 private:
  std::string_view held() const { return std::string_view(buffer_).substr(begin_, end_ - begin_); }
  void check_size(std::uint64_t bytes) const;
  bool fill();       // reads another block; false at the end
  bool skip_line();  // false: the file ends first

  File file_;
  Limits limits_;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what was read and not given yet
  std::uint64_t bytes_read_ = 0;
  std::int64_t number_ = 0;
  bool has_end_ = true;
  bool skips_ = false;  // the rest of a line that was too long comes next
};

}  // namespace megalith
