#include "core/base/error.h"

#include <fmt/format.h>

namespace megalith {

void fail(const Fault& fault, std::source_location place) {
  std::string text;
  if (fault.show_place) text = fmt::format("{}:{}: ", place.file_name(), place.line());
  text += fault.subject;
  if (!fault.expected.empty()) text += ": expected " + fault.expected;
  if (!fault.got.empty()) text += (fault.expected.empty() ? ": got " : ", got ") + fault.got;
  if (!fault.remedy.empty()) text += "; " + fault.remedy;
  throw Error(fault.code, text);
}

}  // namespace megalith
