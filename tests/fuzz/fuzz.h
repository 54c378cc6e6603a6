// What the targets share. A parser may refuse an input with an Error of the exit codes for bad input; any other
// exception, a message of more than one line, and an input that takes more than 100 ms of processor time, and 1 ms for
// each KiB of it, end the run, as do the sanitizers' findings, leaks, and more than 512 MiB (tests/fuzz/run.sh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megalith::fuzz {

// Takes bytes off the front of an input.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size);
  std::uint8_t byte();     // 0 at the end
  std::uint64_t number();  // 8 bytes, little-endian; zeros beyond the end
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

void expect_result_or_error(const std::function<void()>& parse, double milliseconds_per_kib = 1);
[[noreturn]] void defect(std::string_view what);

// A file of this process that parsers which want a path can open; its content is replaced at each call.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name);  // in a folder of its own, which is removed at the end of the process
  const std::string& path() const { return path_; }
  void assign(std::string_view bytes) const;

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace megalith::fuzz
