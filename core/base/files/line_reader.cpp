#include "core/base/files/line_reader.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/file.h"

namespace megalith {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 17;

}  // namespace

LineReader::LineReader(const std::string& path, const Limits& limits) : path_(path), limits_(limits) {
  const auto file = std::make_shared<File>(File::open_stream(path));
  if (file->is_regular()) check_size(file->size());
  source_ = [file](std::span<std::byte> out) { return file->read_next(out); };
}

LineReader::LineReader(std::string path, Source source, const Limits& limits)
    : path_(std::move(path)), source_(std::move(source)), limits_(limits) {}

void LineReader::check_size(std::uint64_t bytes) const {
  if (bytes <= limits_.file_bytes) return;
  refuse_format(path(), fmt::format("at most {} bytes", limits_.file_bytes), "more",
                "check the path: no such file is so large");
}

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  end_ -= begin_;
  begin_ = 0;
  buffer_.resize(end_ + kBlock);
  const std::size_t got = source_(std::as_writable_bytes(std::span(buffer_)).subspan(end_));
  end_ += got;
  bytes_read_ += got;
  check_size(bytes_read_);
  return got > 0;
}

std::string_view LineReader::beginning(std::size_t bytes) {
  while (held().size() < bytes && fill()) continue;
  return held().substr(0, bytes);
}

bool LineReader::skip_line() {
  skips_ = false;
  for (std::size_t end = held().find('\n');; end = held().find('\n')) {
    if (end != std::string_view::npos) {
      begin_ += end + 1;
      return true;
    }
    begin_ = end_;
    if (!fill()) return false;
  }
}

bool LineReader::has_end() {
  if (skips_) has_end_ = skip_line();
  return has_end_;
}

std::optional<LineReader::Line> LineReader::next() {
  if (skips_) skip_line();
  ++number_;
  has_end_ = true;
  std::size_t searched = 0;
  for (;;) {
    const std::string_view text = held();
    const std::size_t end = text.find('\n', searched);
    if (end <= limits_.line_bytes) {
      begin_ += end + 1;
      return Line{.text = text.substr(0, end), .is_too_long = false};
    }
    if (end != std::string_view::npos || text.size() > limits_.line_bytes) {
      skips_ = true;
      return Line{.text = text.substr(0, limits_.line_bytes), .is_too_long = true};
    }
    searched = text.size();
    if (!fill()) break;
  }
  const std::string_view text = held();
  begin_ = end_;
  if (text.empty()) return std::nullopt;
  has_end_ = false;
  return Line{.text = text, .is_too_long = false};
}

}  // namespace megalith
