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
#include <random>
#include <vector>

#include "core/base/error.h"

namespace megalith::fuzz {

namespace {

constexpr double kMaxMilliseconds = 100;
constexpr std::size_t kSmallForm = 4096;  // run_target.sh makes no longer ones without FORM=large

std::size_t input_size = 0;  // current input

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

Input::Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {
  input_size = size;
}

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

void expect_result_or_error(const std::function<void()>& parse, double milliseconds_per_kib) {
  const double most = kMaxMilliseconds + milliseconds_per_kib * static_cast<double>(input_size) / 1024;
  double used = attempt(parse);
  // A busy machine charges a process for some of the others' work, but not each time.
  for (int again = 0; again < 4 && used > most; ++again) used = std::min(used, attempt(parse));
  if (used > most) defect("the input took " + std::to_string(used) + " ms");
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

// Repeats a piece of the input; each later copy has other digits in one place of it, so that names differ.
static std::size_t grow(std::uint8_t* data, std::size_t size, std::size_t max_size, std::minstd_rand& random) {
  constexpr std::size_t kDigits = 4;
  const std::size_t begin = random() % size, length = 1 + random() % std::min<std::size_t>(size - begin, 256);
  const std::vector<std::uint8_t> piece(data + begin, data + begin + length), rest(data + begin, data + size);
  const std::size_t wanted = size + ((max_size - size) >> random() % 8);
  const bool differs = length > kDigits && random() % 2 == 0;
  const std::size_t place = differs ? random() % (length - kDigits) : 0;
  std::uint8_t* out = data + begin;
  for (std::size_t copy = 0; size + length <= wanted; size += length, ++copy) {
    out = std::copy(piece.begin(), piece.end(), out);
    std::size_t number = copy;
    for (std::size_t digit = 0; differs && digit < kDigits; ++digit, number /= 10)
      out[static_cast<std::ptrdiff_t>(place + digit) - static_cast<std::ptrdiff_t>(length)] =
          static_cast<std::uint8_t>('0' + number % 10);
  }
  std::copy(rest.begin(), rest.end(), out);
  return size;
}

}  // namespace megalith::fuzz

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

// libFuzzer's own mutations rarely lengthen an input, so in the large form every other one repeats existing bytes.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  if (max_size > megalith::fuzz::kSmallForm && size > 0 && size < max_size && random() % 2 == 0)
    return megalith::fuzz::grow(data, size, max_size, random);
  return LLVMFuzzerMutate(data, size, max_size);
}
