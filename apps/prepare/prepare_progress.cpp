#include "apps/prepare/prepare_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/counted.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/base/text/progress_bar.h"
#include "core/base/text/units.h"

namespace megalith {

namespace {

constexpr double kSecondsBetweenReports = 5.0;
constexpr double kSecondsBetweenDraws = 0.1;
constexpr std::size_t kBarWidth = 20;

}  // namespace

std::string format_prepare_progress(std::uint64_t bytes, std::uint64_t all_bytes, double seconds) {
  const double read = static_cast<double>(bytes), all = static_cast<double>(all_bytes);
  const double rate = read / std::max(seconds, 1e-6);
  if (all_bytes == 0) return fmt::format("{:.1f} MB read | {:.1f} MB/s", read * 1e-6, rate * 1e-6);
  const double share = std::min(read / all, 1.0);
  const std::string left = bytes > 0 ? duration(std::max(all - read, 0.0) / rate) : "?";
  return fmt::format("{} {:.0f}% of {:.1f} MB | {:.1f} MB/s | {} left", progress_bar(share, kBarWidth), share * 100,
                     all * 1e-6, rate * 1e-6, left);
}

PrepareProgress::PrepareProgress(std::uint64_t all_bytes)
    : all_bytes_(all_bytes),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      next_(is_terminal_ ? 0 : kSecondsBetweenReports) {}

PrepareProgress::~PrepareProgress() { erase_status(); }

void PrepareProgress::add(std::size_t documents, std::int64_t text_bytes) {
  documents_ += documents;
  text_bytes_ += text_bytes;
}

void PrepareProgress::show(std::uint64_t bytes_read) {
  const double seconds = seconds_since(start_);
  if (seconds < next_) return;
  next_ = seconds + (is_terminal_ ? kSecondsBetweenDraws : kSecondsBetweenReports);
  if (is_terminal_) return show_status(format_prepare_progress(bytes_read, all_bytes_, seconds));
  log_info(fmt::format("{}, {:.1f} MB of text so far", counted(documents_, "document"),
                       static_cast<double>(text_bytes_) * 1e-6));
}

}  // namespace megalith
