#include "core/base/files/fault.h"

#include <gtest/gtest.h>

#include <new>

#include "core/base/files/file.h"
#include "core/base/files/mapped_file.h"
#include "core/base/files/output_file.h"
#include "tests/support/faults.h"
#include "tests/support/test_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

TEST(Fault, Parses) {
  const FaultRequest full = parse_fault("save.shard.write:12:enospc");
  EXPECT_EQ(full.site, "save.shard.write");
  EXPECT_EQ(full.at, 12);
  EXPECT_EQ(full.kind, FaultKind::kEnospc);
  EXPECT_EQ(parse_fault("save.shard.sync:1").kind, FaultKind::kEio);
  EXPECT_EQ(parse_fault("save.begin:1").kind, FaultKind::kKill);
  EXPECT_EQ(parse_fault("memory.pool:3").kind, FaultKind::kAbortAlloc);
}

TEST(Fault, RefusesWhatCannotHappen) {
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_ERROR(ExitCode::kUsage, part, parse_fault(text));
  };
  expect("", "--fault : expected SITE:N[:kind], got an unknown site; --fault list shows the sites");
  expect("save.nothing:1", "an unknown site");
  expect("save.shard:1", "an unknown site");
  expect("save.begin.point:1", "an unknown site");
  for (const char* number : {"", ":", ":0", ":-1", ":1x", ":1000000000001", ":99999999999999999999"}) {
    expect(std::string("save.begin") + number, "N from 1 to 10^12");
  }
  expect("save.begin:1:eio", "expected a kind of kill, abort-alloc, got eio");
  expect("save.shard.sync:1:short", "expected a kind of eio, enospc, eintr, kill, abort-alloc, got short");
  expect("save.shard.sync:1:none", "got none");
  expect("memory.pool:1:eio", "expected a kind of kill, abort-alloc");
}

TEST(Fault, ThereAreManySitesAroundTheCommit) {
  std::set<std::string> all;
  int save = 0;
  for (const std::string& site : fault_sites()) {
    EXPECT_TRUE(all.insert(site).second) << site;
    EXPECT_EQ(parse_fault(site + ":1").site, site);
    EXPECT_NE(fault_list().find(site + " "), std::string::npos);
    save += site.starts_with("save.") ? 1 : 0;
  }
  EXPECT_GE(save, 40);
}

TEST(Fault, StrikesOnceAtTheNthTimeInItsScopeOnly) {
  const TestFolder folder;
  write_bytes(folder.path("a"), "x");
  const Faults faults("config.open:2:eio");
  EXPECT_EQ(read_whole_file(folder.path("a"), 10), "x");  // no scope
  const FaultScope scope("config");
  EXPECT_EQ(read_whole_file(folder.path("a"), 10), "x");
  {
    const FaultScope inner("report.input");
    EXPECT_EQ(read_whole_file(folder.path("a"), 10), "x");
  }
  EXPECT_EQ(faults_fired(), 0);
  EXPECT_ERROR(ExitCode::kFileIo, "cannot open " + folder.path("a") + ": Input/output error (EIO)",
               read_whole_file(folder.path("a"), 10));
  EXPECT_EQ(faults_fired(), 1);
  EXPECT_EQ(read_whole_file(folder.path("a"), 10), "x");
}

// Interrupted and short calls are repeated, others are errors with operation, bytes and file.
TEST(Fault, EachKindAtReadsAndWrites) {
  const TestFolder folder;
  const std::string path = folder.path("file");
  const std::string text(1001, 'x');
  const auto write = [&](const std::string& fault) {
    const Faults faults(fault);
    OutputFile out(path, "report.output");
    out.write(text);
    out.commit();
    EXPECT_EQ(faults_fired(), 1) << fault;
  };
  for (const char* operation : {"create", "write", "sync", "rename", "open"}) {
    write(std::string("report.output.") + operation + ":1:eintr");
    EXPECT_EQ(read_bytes(path), text);
  }
  write("report.output.write:1:short");
  EXPECT_EQ(read_bytes(path), text);
  write_bytes(path, "old");
  EXPECT_ERROR(ExitCode::kFileIo, "cannot write 1001 bytes at 0 of " + path + ": No space left on device (ENOSPC)",
               write("report.output.write:1:enospc"));
  EXPECT_ERROR(ExitCode::kFileIo, "cannot create " + path + ": Input/output error (EIO)",
               write("report.output.create:1:eio"));
  EXPECT_ERROR(ExitCode::kFileIo, "cannot sync 1001 bytes of " + path + ": Input/output error (EIO)",
               write("report.output.sync:1:eio"));
  EXPECT_ERROR(ExitCode::kFileIo, "cannot close " + path + " after 1001 bytes: No space left on device (ENOSPC)",
               write("report.output.close:1:enospc"));
  EXPECT_ERROR(ExitCode::kFileIo, " to " + path + ": Input/output error (EIO)", write("report.output.rename:1:eio"));
  EXPECT_THROW(write("report.output.write:1:abort-alloc"), std::bad_alloc);
  EXPECT_EQ(read_bytes(path), "old");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 1);  // nothing temporary is left

  const FaultScope scope("report.input");
  for (const char* kind : {"eintr", "short"}) {
    const Faults faults(std::string("report.input.read:1:") + kind);
    EXPECT_EQ(read_whole_file(path, 3), "old");
    EXPECT_EQ(faults_fired(), 1);
  }
  const Faults faults("report.input.read:1:eio");
  EXPECT_ERROR(ExitCode::kFileIo, "cannot read 4 bytes at 0 of " + path, read_whole_file(path, 10));
  EXPECT_ERROR(ExitCode::kFormat, path + ": expected at most 2 bytes, got 3", read_whole_file(path, 2));
}

TEST(Fault, Mappings) {
  const TestFolder folder;
  write_bytes(folder.path("file"), "xyz");
  const FaultScope scope("prepare.input");
  {
    const Faults faults("prepare.input.map:1:enospc");
    EXPECT_ERROR(ExitCode::kFileIo, "cannot map 3 bytes of " + folder.path("file"),
                 MappedFile::open(folder.path("file")));
  }
  EXPECT_EQ(MappedFile::open(folder.path("file")).text(), "xyz");
}

TEST(Fault, PointsAndAllocations) {
  fault_point("save.begin");  // nothing is armed
  {
    const Faults faults("save.begin:2:abort-alloc");
    fault_point("save.begin");
    EXPECT_THROW(fault_point("save.begin"), std::bad_alloc);
  }
  const Faults faults("memory.pool:2");
  EXPECT_FALSE(fault_allocation("memory.pool"));
  EXPECT_TRUE(fault_allocation("memory.pool"));
  EXPECT_FALSE(fault_allocation("memory.pool"));
}

TEST(FaultDeathTest, KillEndsTheProcessInTheMiddleOfAWrite) {
  const TestFolder folder;
  const auto write = [&] {
    const Faults faults("metrics.write:1:kill");
    const FaultScope scope("metrics");
    File file = File::append(folder.path("file"));
    file.write("12345678");
  };
  EXPECT_EXIT(write(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(read_bytes(folder.path("file")), "1234");
}

}  // namespace
}  // namespace megalith
