// Every call on the files of a dataset fails once: a message, and no half dataset.
#include <gtest/gtest.h>

#include "core/base/files/fault.h"
#include "core/data/document_reader.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class DatasetFaults : public testing::Test {
 protected:
  void TearDown() override { disarm_faults(); }

  static Words sites(const std::string& scope) {
    Words found;
    for (const std::string& site : fault_sites()) {
      if (site.starts_with(scope + ".")) found.push_back(site);
    }
    return found;
  }
  // Arms the fault; false if it cannot happen.
  static bool arm(const std::string& site, const std::string& kind, int at = 1) {
    try {
      arm_faults({parse_fault(site + ":" + std::to_string(at) + ":" + kind)});
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  // Exception of `work`: an Error of a file if `kind` is a failure, otherwise none.
  template <class Work>
  static void expect(const std::string& where, const std::string& kind, Work work) {
    const bool fails = kind == "eio" || kind == "enospc";
    try {
      work();
      EXPECT_TRUE(!fails || faults_fired() == 0) << where;
    } catch (const Error& error) {
      EXPECT_TRUE(fails) << where << ": " << error.what();
      EXPECT_EQ(error.code(), ExitCode::kFileIo) << where;
      EXPECT_THAT(error.what(), HasSubstr(kind == "eio" ? "(EIO)" : "(ENOSPC)")) << where;
      EXPECT_THAT(error.what(), HasSubstr("cannot ")) << where;
    }
  }

  const Words kinds_ = {"eio", "enospc", "eintr", "short"};
  TestFolder folder_;
};

TEST_F(DatasetFaults, Writing) {
  int struck = 0;
  for (const std::string& site : sites("prepare.output")) {
    for (const std::string& kind : kinds_) {
      for (const int at : {1, 2}) {
        disarm_faults();
        write_golden_dataset(folder_ / "d", 5, 41);
        if (!arm(site, kind, at)) continue;
        expect(site + " " + kind, kind, [&] { write_golden_dataset(folder_ / "d", 7, 41); });
        struck += static_cast<int>(faults_fired());
        disarm_faults();
        // The old dataset or the new one; or, as after a crash in between, no index.
        if (std::filesystem::exists(folder_ / "d.idx")) {
          const std::int64_t documents = IndexedDataset::open(folder_ / "d").num_documents();
          EXPECT_TRUE(documents == 5 || documents == 7) << site << " " << kind;
        }
        for (const auto& entry : std::filesystem::directory_iterator(folder_ / ""))
          EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << site << " " << kind;
      }
    }
  }
  EXPECT_GT(struck, 30);
}

TEST_F(DatasetFaults, Reading) {
  write_golden_dataset(folder_ / "d", 5, 41);
  write_bytes(folder_ / "t.txt", "a text\n");
  write_bytes(folder_ / "l.jsonl", "{\"text\": \"a line\"}\n");
  int struck = 0;
  for (const std::string& site : sites("data") + sites("prepare.input")) {
    for (const std::string& kind : kinds_) {
      if (!arm(site, kind)) continue;
      std::vector<std::int32_t> tokens(golden_sequence(3, 41).size());
      std::string text, line;
      expect(site + " " + kind, kind, [&] {
        IndexedDataset::open(folder_ / "d").read(3, 0, tokens);
        for_each_document(folder_ / "t.txt", {}, [&](std::string_view document) { text = document; });
        EXPECT_EQ(tokens, golden_sequence(3, 41));
        for_each_document(folder_ / "l.jsonl", {}, [&](std::string_view document) { line = document; });
        EXPECT_EQ(text, "a text\n");
        EXPECT_EQ(line, "a line");
      });
      EXPECT_EQ(faults_fired(), 1) << site << " " << kind;
      struck += static_cast<int>(faults_fired());
    }
  }
  EXPECT_GT(struck, 15);
}

// The file shrinks while it is in use: an error, although a mapping would end the process.
TEST_F(DatasetFaults, TokensThatVanish) {
  write_golden_dataset(folder_ / "d", 5, 41);
  const IndexedDataset dataset = IndexedDataset::open(folder_ / "d");
  std::filesystem::resize_file(folder_ / "d.bin", 3);
  std::vector<std::int32_t> tokens(golden_sequence(3, 41).size());
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { dataset.read(3, 0, tokens); }), HasSubstr("d.bin: it ends after"));
}

TEST_F(DatasetFaults, AnIndexThatShrinksEndsTheProcessWithALine) {
  write_golden_dataset(folder_ / "d", 2000, 41);
  const auto read = [&] {
    end_on_lost_mappings();
    const IndexedDataset dataset = IndexedDataset::open(folder_ / "d");
    std::filesystem::resize_file(folder_ / "d.idx", 100);
    dataset.sequence_length(1900);
  };
  EXPECT_EXIT(read(), testing::ExitedWithCode(3), "error: cannot read .*d.idx: it became shorter while it was in use");
}

}  // namespace
}  // namespace megalith
