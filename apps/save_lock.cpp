#include "apps/save_lock.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"

namespace megalith {

namespace {

constexpr const char* kName = "run.lock";  // empty, and never removed: another may be about to lock it
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kPeriod(50);

}  // namespace

SaveLock::SaveLock(const std::string& folder) {
  const FaultScope scope("save_lock");
  file_ = Directory::open(folder).open_to_lock(kName);
  const auto start = std::chrono::steady_clock::now();
  LockState state = file_.try_lock();
  if (state == LockState::kHeld) log_info(fmt::format("--save {}: waiting for another run in it to end", folder));
  while (state == LockState::kHeld && std::chrono::steady_clock::now() - start < kPatience) {
    std::this_thread::sleep_for(kPeriod);
    state = file_.try_lock();
  }
  if (state == LockState::kHeld) {
    fail({.code = ExitCode::kFileIo,
          .subject = "--save " + folder,
          .expected = "a folder that no other run saves into",
          .got = fmt::format("one that another holds ({} is locked)", file_.path()),
          .remedy = "stop the other run, or name another folder",
          .show_place = false});
  }
  if (state == LockState::kUnsupported)
    log_warning(
        fmt::format("--save {}: its file system knows no locks: take care that no other run saves there", folder));
}

}  // namespace megalith
