#include <gtest/gtest.h>

#include "parallel/comm/nccl/nccl_communicator.h"

namespace megalith {
namespace {

TEST(NcclVersion, AnOlderOrForeignLibraryIsRefused) {
  EXPECT_EQ(nccl_version_fault(22809, 22809), "");
  EXPECT_EQ(nccl_version_fault(22803, 22809), "") << "an older patch level";
  EXPECT_EQ(nccl_version_fault(22901, 22809), "") << "a newer minor version";
  EXPECT_EQ(nccl_version_fault(22706, 22809),
            "NCCL: expected version 2.28 or a newer 2.x, for which this program was built, got the library of version "
            "2.27.6; put the right libnccl.so.2 first on LD_LIBRARY_PATH");
  EXPECT_NE(nccl_version_fault(30000, 22809), "");
  EXPECT_NE(nccl_version_fault(0, 22809), "") << "a library that does not say it";
}

}  // namespace
}  // namespace megalith
