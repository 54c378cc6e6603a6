#include "core/reports/append_log.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxWaiting = std::size_t{16} << 20;

}  // namespace

AppendLog::AppendLog(File file, std::string name, const char* scope)
    : file_(std::move(file)), name_(std::move(name)), scope_(scope) {}

AppendLog::~AppendLog() {
  if (!waiting_.empty()) flush();
  if (waiting_.empty()) return;
  log_info(fmt::format("{}: the last {} could not be written{}", name_, counted(waiting_.size(), "byte"),
                       lost_ == 0 ? "" : fmt::format(", nor {}", counted(lost_, "later record"))));
}

bool AppendLog::write(std::string_view record) {
  const bool fits = waiting_.size() + record.size() <= kMaxWaiting;
  if (fits) {
    waiting_ += record;
  } else {
    ++lost_;
  }
  flush();
  return fits;
}

void AppendLog::flush() {
  const FaultScope scope(scope_);
  const std::uint64_t before = file_.size();
  try {
    file_.write(waiting_);
  } catch (const Error& error) {
    waiting_.erase(0, file_.size() - before);
    if (!std::exchange(is_failing_, true)) {
      log_warning(fmt::format("{}: {}; it is kept and tried again at each step", name_, error.what()));
    }
    return;
  }
  waiting_.clear();
  if (!std::exchange(is_failing_, false)) return;
  const std::int64_t lost = std::exchange(lost_, 0);
  log_info(fmt::format("{}: written again, {}", name_,
                       lost == 0 ? "nothing is lost"
                                 : fmt::format("but {} {} lost", counted(lost, "record"), lost == 1 ? "is" : "are")));
}

}  // namespace megalith
