#include "parallel/checkpoint/save_lock.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "parallel/checkpoint/folder.h"

namespace megalith {

namespace {

constexpr const char* kName = "run.lock";  // empty, and never removed: another process may be about to lock it
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kPeriod(50);

}  // namespace

SaveLock::SaveLock(const std::string& folder) {
  const FaultScope scope("save_lock");
  const Directory root = Directory::open(folder);
  take(root, true);
  if (const std::string left = remove_stale_temporaries(root); !left.empty())
    log_warning(fmt::format("--save {}: what a killed save left there stays: {}", folder, left));
}

void SaveLock::hold(const Directory& folder) {
  if (file_.is_open() && folder.identity_of(kName) == file_.identity()) return;
  file_ = File();  // lock of a removed file
  take(folder, false);
  log_warning(fmt::format("--save {}: it, or {} in it, was removed or moved while the run held it; locked again",
                          folder.path(), kName));
}

void SaveLock::take(const Directory& folder, bool waits) {
  const FaultScope scope("save_lock");
  file_ = folder.open_to_lock(kName);
  const auto start = std::chrono::steady_clock::now();
  LockState state = file_.try_lock();
  if (state == LockState::kHeld && waits)
    log_info(fmt::format("--save {}: waiting for another run in it to end", folder.path()));
  while (state == LockState::kHeld && waits && std::chrono::steady_clock::now() - start < kPatience) {
    std::this_thread::sleep_for(kPeriod);
    state = file_.try_lock();
  }
  if (state == LockState::kHeld) {
    const std::string path = file_.path();
    file_ = File();
    fail({.code = ExitCode::kFileIo,
          .subject = "--save " + folder.path(),
          .expected = "a folder that no other run saves into",
          .got = fmt::format("one that another holds ({} is locked)", path),
          .remedy = "stop the other run, or name another folder",
          .show_place = false});
  }
  if (state == LockState::kUnsupported)
    log_warning(fmt::format("--save {}: its file system knows no locks: take care that no other run saves there",
                            folder.path()));
}

}  // namespace megalith
