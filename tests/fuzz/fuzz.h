// Shared code of the targets. A parser may reject an input with an Error of the exit codes for bad input. Any other
// exception and a message of several lines end the run; so do 100 ms of processor time, plus 1 ms for each KiB. The
// sanitizers' findings, leaks, and more than 512 MiB (tests/fuzz/run.sh) end the run too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megalith::fuzz {

// Reads bytes off the front of an input.
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

// A file of this process that parsers which need a path can open; its content is replaced at each call.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name);  // in a dedicated folder, which is removed at the end of the process
  const std::string& path() const { return path_; }
  void assign(std::string_view bytes) const;

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace megalith::fuzz
