#include "core/base/error.h"

#include <fmt/format.h>

#include "core/base/text/text.h"

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

std::string exit_codes_text() {
  return "Exit codes:\n"
         "  0   done\n"
         "  2   usage: a flag or a configuration value is wrong\n"
         "  3   a file cannot be opened, read or written\n"
         "  4   a file's content is damaged or unknown\n"
         "  5   no valid checkpoint where one was asked for\n"
         "  6   out of memory, or of threads\n"
         "  7   communication: a rank was lost, hangs or makes other calls than its peers\n"
         "  8   numbers: too many steps with NaN or Inf, or replicas that differ\n"
         "  9   internal error, a defect of the program\n"
         "  75  stopped on request, after saving\n"
         "  128 + N  ended by signal N; by a second stop signal too\n";
}

}  // namespace megalith
