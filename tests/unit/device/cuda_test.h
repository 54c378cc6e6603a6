// Tests of the device library on a GPU: skipped, visibly, without one.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "core/device/copy.h"
#include "core/device/stream.h"
#include "core/memory/host_arena.h"
#include "tests/support/device_tasks.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = test::missing(DeviceType::kCuda); !reason.empty()) GTEST_SKIP() << reason;
    arena_ = std::make_unique<HostArena>(DeviceType::kCuda, 1 << 16, "flags");
    test::load_kernels();
    start_ = std::chrono::steady_clock::now();
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  // Zeros that host and kernels share.
  int* flags(std::size_t count) {
    int* flag = arena_->allocate_as<int>(count);
    for (std::size_t i = 0; i < count; ++i) write_flag(flag + i, 0);
    return flag;
  }
  static int read_flag(int* flag) { return std::atomic_ref(*flag).load(); }
  static void write_flag(int* flag, int value) { std::atomic_ref(*flag).store(value); }

  static CudaStream& backend(Stream& stream) { return *stream.cuda(); }
  static void spin(Stream& s, const int* flag, int value) { test::enqueue_spin(backend(s), flag, value); }
  static void signal(Stream& s, int* flag, int value) { test::enqueue_signal(backend(s), flag, value); }
  static void add(Stream& s, int* address, int value) { test::enqueue_add(backend(s), address, value); }
  static void copy_by_kernel(Stream& s, int* to, const int* from) { test::enqueue_copy(backend(s), to, from); }
  static void nothing(Stream& s) { test::enqueue_nothing(backend(s)); }
  static void fault(Stream& s, std::int64_t got, std::int64_t threads) {
    test::enqueue_fault(backend(s), got, threads);
  }
  static void bad_launch(Stream& s) { test::enqueue_bad_launch(backend(s)); }

  // Like launch(): announces an op that writes `to`, then enqueues.
  template <class Enqueue>
  static void op(Stream& stream, const char* name, int* to, Enqueue&& enqueue) {
    Access access(name);
    access.add(to, sizeof(int), true);
    if (stream.needs_access()) stream.announce(access);
    enqueue(stream);
  }

 private:
  std::unique_ptr<HostArena> arena_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace megalith
