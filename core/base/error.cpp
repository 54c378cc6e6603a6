#include "core/base/error.h"

#include <fmt/format.h>

namespace megalith {

namespace {

// A message is one line, whatever names of files and flags it shows.
std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte >= 0x20 && byte != 0x7f ? std::string(1, c) : c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
  }
  return line;
}

}  // namespace

void fail(const Fault& fault, std::source_location place) {
  std::string text;
  if (fault.show_place) text = fmt::format("{}:{}: ", place.file_name(), place.line());
  text += fault.subject;
  if (!fault.expected.empty()) text += ": expected " + fault.expected;
  if (!fault.got.empty()) text += (fault.expected.empty() ? ": got " : ", got ") + fault.got;
  if (!fault.remedy.empty()) text += "; " + fault.remedy;
  throw Error(fault.code, in_one_line(text));
}

void refuse_usage(const std::string& subject, const std::string& expected, const std::string& got,
                  const std::string& remedy) {
  fail({ExitCode::kUsage, subject, expected, got, remedy, /*show_place=*/false});
}

void refuse_format(const std::string& subject, const std::string& expected, const std::string& got,
                   const std::string& remedy) {
  fail({ExitCode::kFormat, subject, expected, got, remedy, /*show_place=*/false});
}

}  // namespace megalith
