// GoogleTest on the ranks of a world that mpirun started. Only rank 0 reports passed tests; any rank reports failures,
// and then fails.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>

#include "parallel/comm/mpi/mpi_runtime.h"

namespace megalith::test {

class FailuresOnly : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name(), result.line_number(), result.message());
  }
  int rank_;
};

// Parses GoogleTest's flags.
inline void init_tests(int& argc, char** argv, const MpiRuntime& mpi) {
  testing::InitGoogleTest(&argc, argv);
  if (mpi.rank() == 0) return;
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(mpi.rank()));
}

// The program's exit code.
inline int run_tests(MpiRuntime& mpi, Communicator& world) {
  bool failed = RUN_ALL_TESTS() != 0;
  try {
    failed = world.host_any(failed);
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", mpi.rank(), error.what());
    mpi.abort(error.code());
  }
  return failed ? 1 : 0;
}

}  // namespace megalith::test
