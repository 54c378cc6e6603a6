#include "core/base/exit_codes.h"

namespace megalith {

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
