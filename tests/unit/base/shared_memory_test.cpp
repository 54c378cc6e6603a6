#include "core/base/files/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace megalith {
namespace {

TEST(SharedMemory, IsOneForTwoProcesses) {
  SharedMemory mine = SharedMemory::create(100);
  ASSERT_NE(mine.data(), nullptr);
  auto* const bytes = static_cast<unsigned char*>(mine.data());
  for (std::size_t i = 0; i < mine.bytes(); ++i) ASSERT_EQ(bytes[i], 0);
  const std::string ticket = mine.ticket();
  const pid_t child = fork();
  if (child == 0) {
    const SharedMemory theirs = SharedMemory::open(ticket, 100);
    if (theirs.data() == nullptr || theirs.data() == mine.data()) _exit(1);
    static_cast<unsigned char*>(theirs.data())[99] = 7;
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(bytes[99], 7);
}

TEST(SharedMemory, IsNoneWhereItCannotBeReached) {
  std::string ticket;
  {
    const SharedMemory gone = SharedMemory::create(100);
    ticket = gone.ticket();
    EXPECT_EQ(SharedMemory::open(ticket, 200).data(), nullptr) << "another size";
  }
  EXPECT_EQ(SharedMemory::open(ticket, 100).data(), nullptr);
  EXPECT_EQ(SharedMemory::open("/proc/0/fd/0", 100).bytes(), 0u);
  EXPECT_EQ(SharedMemory::create(std::size_t{1} << 62).data(), nullptr);
}

TEST(SharedMemory, Moves) {
  SharedMemory first = SharedMemory::create(10);
  void* const data = first.data();
  SharedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  SharedMemory third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.bytes(), 10u);
}

}  // namespace
}  // namespace megalith
