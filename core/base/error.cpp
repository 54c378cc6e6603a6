#include "core/base/error.h"

#include <fmt/format.h>

#include "core/base/one_line.h"

namespace megalith {

void fail(const Fault& fault, std::source_location place) {
  std::string text;
  if (fault.show_place) text = fmt::format("{}:{}: ", place.file_name(), place.line());
  text += fault.subject;
  if (!fault.expected.empty()) text += ": expected " + fault.expected;
  if (!fault.got.empty()) text += (fault.expected.empty() ? ": got " : ", got ") + fault.got;
  if (!fault.remedy.empty()) text += "; " + fault.remedy;
  throw Error(fault.code, in_one_line(text));
}

void refuse_usage(const std::string& place, const Refusal& refusal) {
  fail({ExitCode::kUsage, place, refusal.expected, refusal.got, refusal.remedy, /*show_place=*/false});
}

void refuse_format(const std::string& place, const std::string& expected, const std::string& got,
                   const std::string& remedy) {
  fail({ExitCode::kFormat, place, expected, got, remedy, /*show_place=*/false});
}

}  // namespace megalith
