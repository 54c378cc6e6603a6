// Text records next to a dataset, PREFIX.tokenizer and PREFIX.packs: lines "KEY VALUE" in a fixed order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megalith {

std::string tokenizer_record_path(const std::string& prefix);  // PREFIX.tokenizer
std::string pack_record_path(const std::string& prefix);       // PREFIX.packs

// Returns the text of a record; none: no such file. Error kFormat for anything but a small regular file.
std::optional<std::string> read_record(const std::string& path);

// Reader of a record's lines in order. Error kFormat for any other text; `subject` is the file.
class RecordLines {
 public:
  RecordLines(std::string_view text, std::string subject) : rest_(text), subject_(std::move(subject)) {}

  std::string_view take(std::string_view key);    // value of the next line, which must have the key; printable ASCII
  std::int64_t take_count(std::string_view key);  // the same for a number of at least 0
  void end() const;                               // fails if text is left
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) const;

 private:
  std::string_view rest_;
  std::string subject_;
};

}  // namespace megalith
