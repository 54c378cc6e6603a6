#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>

#include "core/base/error.h"

namespace megalith::fuzz {

namespace {

constexpr double kMostMilliseconds = 100;

double processor_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::string& scratch_folder() {
  static std::string* folder = [] {
    auto* path = new std::string((std::filesystem::temp_directory_path() / "megalith-fuzz-XXXXXX").string());
    if (mkdtemp(path->data()) == nullptr) defect("no temporary folder");
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(scratch_folder(), ignored);
    });
    return path;
  }();
  return *folder;
}

}  // namespace

std::uint8_t Input::byte() {
  if (rest_.empty()) return 0;
  const auto value = static_cast<std::uint8_t>(rest_[0]);
  rest_.remove_prefix(1);
  return value;
}

std::uint64_t Input::number() {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= std::uint64_t{byte()} << (8 * i);
  return value;
}

void defect(std::string_view what) {
  std::fprintf(stderr, "defect: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

// Returns the processor time.
static double attempt(const std::function<void()>& parse) {
  const double start = processor_milliseconds();
  try {
    parse();
  } catch (const Error& error) {
    const ExitCode code = error.code();
    if (code != ExitCode::kUsage && code != ExitCode::kFormat && code != ExitCode::kFileIo) defect(error.what());
    if (std::strchr(error.what(), '\n') != nullptr) defect(std::string("a message of several lines: ") + error.what());
  } catch (const std::exception& error) {
    defect(std::string("not an Error: ") + error.what());
  }
  return processor_milliseconds() - start;
}

void expect_result_or_error(const std::function<void()>& parse) {
  double used = attempt(parse);
  // A busy machine charges a process for some of the others' work, but not each time.
  for (int again = 0; again < 4 && used > kMostMilliseconds; ++again) used = std::min(used, attempt(parse));
  if (used > kMostMilliseconds) defect("the input took " + std::to_string(used) + " ms");
}

ScratchFile::ScratchFile(const std::string& name) : path_(scratch_folder() + "/" + name) {
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) defect("no temporary file");
}

void ScratchFile::assign(std::string_view bytes) const {
  const auto size = static_cast<ssize_t>(bytes.size());
  if (pwrite(descriptor_, bytes.data(), bytes.size(), 0) != size || ftruncate(descriptor_, size) != 0)
    defect("the temporary file cannot be written");
}

}  // namespace megalith::fuzz
