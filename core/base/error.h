// Error type of the program. The text has source line, subject, expected value, actual value and remedy:
//   core/ops/rmsnorm.cpp:8: op.weight: expected shape [4096], got [4097]; remedy
// `main` prefixes the rank, prints the line and ends all ranks with the exit code below.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace megalith {

// Exit codes of every program; they are part of the user interface.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,          // a flag or configuration value is wrong or contradicts another
  kFileIo = 3,         // a file cannot be opened, read or written
  kFormat = 4,         // a file was read and its content is damaged or unknown
  kNoCheckpoint = 5,   // no valid checkpoint where one was asked for
  kOutOfMemory = 6,    // an allocation failed
  kCommunication = 7,  // a peer was lost or hangs
  kNumeric = 8,        // too many steps with NaN or Inf
  kInternal = 9,       // a defect of the program
  kStoppedOnRequest = 75,
};

// Returns text for --help: "Exit codes:" and one line for each code.
std::string exit_codes_text();

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Parts of the line that `fail` prints, in this order. Empty parts are omitted.
struct Fault {
  ExitCode code = ExitCode::kInternal;
  std::string subject;   // the wrong flag, file, tensor or call
  std::string expected;  // valid values
  std::string got;
  std::string remedy;
  bool show_place = true;  // source file and line; false for user input, which `subject` locates
};

[[noreturn]] void fail(const Fault& fault, std::source_location place = std::source_location::current());

// Problem of a value; empty parts are omitted.
struct Refusal {
  std::string expected;
  std::string got;
  std::string remedy;
};

// Rejects user input: a flag or configuration value (kUsage), or the content of a file (kFormat).
// `place` is the flag or file, so no source line is printed.
[[noreturn]] void refuse_usage(const std::string& place, const Refusal& refusal);
[[noreturn]] void refuse_format(const std::string& place, const std::string& expected, const std::string& got,
                                const std::string& remedy = {});

// Fails with kInternal if `condition` is false, which only a defect of the program can cause.
inline void require(bool condition, std::string_view what,
                    std::source_location place = std::source_location::current()) {
  if (!condition) [[unlikely]]
    fail({.code = ExitCode::kInternal, .subject = std::string(what)}, place);
}

}  // namespace megalith
