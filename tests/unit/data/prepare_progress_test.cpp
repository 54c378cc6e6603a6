#include "apps/prepare/prepare_progress.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(PrepareProgress, ShareRateAndTimeLeft) {
  EXPECT_EQ(format_prepare_progress(100'000'000, 200'000'000, 4),
            "[==========>         ] 50% of 200.0 MB | 25.0 MB/s | 4s left");
  EXPECT_EQ(format_prepare_progress(200'000'000, 200'000'000, 100),
            "[====================] 100% of 200.0 MB | 2.0 MB/s | 0s left");
  EXPECT_EQ(format_prepare_progress(0, 200'000'000, 0), "[>                   ] 0% of 200.0 MB | 0.0 MB/s | ? left");
}

TEST(PrepareProgress, FilesThatGrewAndPipes) {
  EXPECT_EQ(format_prepare_progress(300, 200, 1), "[====================] 100% of 0.0 MB | 0.0 MB/s | 0s left");
  EXPECT_EQ(format_prepare_progress(50'000'000, 0, 10), "50.0 MB read | 5.0 MB/s");
}

}  // namespace
}  // namespace megalith
