// Ops, gates and error texts for the tests of core/device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/device/capture_guard.h"
#include "core/device/stream.h"
#include "tests/support/device_cases.h"
#include "tests/support/device_tasks.h"

namespace megalith {

// A test that runs on every computing backend of this build; visibly skipped if its device is missing.
class BackendTest : public test::OnDevice<DeviceType> {
 protected:
  void SetUp() override {
    test::OnDevice<DeviceType>::SetUp();
    if (!IsSkipped()) start();
  }
  virtual void start() {}  // makes the streams
};

// With two streams under one guard of captures.
class TwoStreamsTest : public BackendTest {
 protected:
  void start() override {
    compute_ = std::make_unique<Stream>(device(), "compute", Instruments{.captures = &guard_});
    comm_ = std::make_unique<Stream>(device(), "comm", Instruments{.captures = &guard_});
  }
  Stream& compute() { return *compute_; }
  Stream& comm() { return *comm_; }

  CaptureGuard guard_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> comm_;
};

#define MEGALITH_BACKEND_TESTS(Suite) \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, testing::ValuesIn(test::devices()), test::name_of_device_case)

struct TestOp {
  const char* name = "op";
  std::vector<AccessRange> ranges = {};
  CpuStream::Task task = [] {};
};

inline Access access_of(const TestOp& op) {
  Access access(op.name);
  for (const AccessRange& range : op.ranges) access.add(range.begin, range.bytes, range.write);
  return access;
}

// Enqueues a task without announcing it.
inline void enqueue_unannounced(Stream& stream, CpuStream::Task task) {
  if (CudaStream* cuda = stream.cuda()) {
    test::enqueue_on_host(*cuda, std::move(task));
  } else if (CpuStream* cpu = stream.cpu()) {
    cpu->enqueue(std::move(task));
  }
}

// Like launch(): announces the op, then enqueues its task.
inline void enqueue(Stream& stream, const TestOp& op) {
  if (stream.needs_access()) stream.announce(access_of(op));
  enqueue_unannounced(stream, op.task);
  stream.end_op();
}

inline void enqueue(Stream& stream, CpuStream::Task task) { enqueue(stream, TestOp{.task = std::move(task)}); }

// The least that Access asks of a tensor.
struct Tensorlike {
  void* data;
  std::size_t bytes;
  std::size_t extent_bytes() const { return bytes; }
};

template <class T>
AccessRange reads(const T& object) {
  return {&object, sizeof(object), false};
}
template <class T>
AccessRange writes(T& object) {
  return {&object, sizeof(object), true};
}

// Closed at first. A wait gives up after some seconds, so that a test fails instead of hanging.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();  // still locked: whoever passes may destroy the gate
  }
  bool opens_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return open_; });
  }
  void pass() {
    if (!opens_within(std::chrono::seconds(30))) throw std::runtime_error("a gate stayed closed");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Exception text of `call`, "" without one.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

template <class Call>
ExitCode exit_code_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ExitCode::kOk;
}

}  // namespace megalith
