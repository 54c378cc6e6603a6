// Files that change under a run: its samples are those of the files that were opened, or an error.
#include "core/data/dataset.h"
#include "tests/support/matchers.h"

#include <chrono>

#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

class ChangedFiles : public testing::Test {
 protected:
  ChangedFiles() {
    write_golden_dataset(folder_ / "d", 40, 41);
    // Written long ago: a clock of files has ticks of milliseconds.
    for (const char* name : {"d.idx", "d.bin"})
      fs::last_write_time(folder_ / name, fs::file_time_type::clock::now() - std::chrono::hours(1));
    dataset_ = build_datasets({.data_path = {folder_ / "d"},
                               .split = "1,0,0",
                               .seq_length = 16,
                               .vocab_size = 251,
                               .num_samples = {.train = 30}})
                   .train;
  }
  Ids sample(std::int64_t k) {
    Ids tokens(17);
    dataset_.sample(k, tokens);
    return tokens;
  }
  // Message of each sample and of the check of all files.
  std::string refused() {
    const std::string message = error_of(ExitCode::kFormat, [&] { dataset_.check_unchanged(); });
    for (std::int64_t k = 0; k < 30; ++k) EXPECT_EQ(error_of(ExitCode::kFormat, [&] { sample(k); }), message);
    return message;
  }
  void overwrite(const std::string& name, std::int64_t at, const std::string& bytes) {
    std::fstream(folder_ / name, std::ios::binary | std::ios::in | std::ios::out).seekp(at) << bytes;
  }

  TestFolder folder_;
  Dataset dataset_;
};

TEST_F(ChangedFiles, AnIndexThatIsOverwrittenInPlace) {
  sample(3);
  overwrite("d.idx", 34 + 4 * 7, std::string(4, '\0'));  // the length of a sequence
  EXPECT_THAT(refused(), testing::AllOf(HasSubstr("d.idx: expected the file that was opened, got one that was written "
                                                  "to, of "),
                                        HasSubstr("continue from the last checkpoint")));
}

// Without separate bounds, reading would run past the last document.
TEST_F(ChangedFiles, AnIndexOfEmptySequences) {
  overwrite("d.idx", 34, std::string(4 * 40, '\0'));
  EXPECT_THAT(refused(), HasSubstr("d.idx: "));
}

TEST_F(ChangedFiles, LengthsThatAreNegative) {
  overwrite("d.idx", 34, std::string(4 * 40, '\xff'));
  EXPECT_THAT(refused(), HasSubstr("d.idx: "));
}

TEST_F(ChangedFiles, TokensThatAreOverwritten) {
  overwrite("d.bin", 10, "\x01");
  EXPECT_THAT(refused(), HasSubstr("d.bin: expected the file that was opened, got one that was written to"));
  fs::resize_file(folder_ / "d.bin", 3);
  EXPECT_THAT(refused(), HasSubstr("of 3 bytes where it had "));
}

TEST_F(ChangedFiles, ADatasetThatIsPreparedAgain) {
  write_golden_dataset(folder_ / "d", 40, 37);
  EXPECT_THAT(refused(), HasSubstr("d.idx: expected the file that was opened, got another one in its place; "));
}

// None of these changes gives other tokens.
TEST_F(ChangedFiles, LinksPermissionsAndRemovalAreNoChange) {
  const Ids before = sample(3);
  fs::permissions(folder_ / "d.idx", fs::perms::owner_read);
  fs::create_hard_link(folder_ / "d.bin", folder_ / "link");
  EXPECT_EQ(sample(3), before);
  fs::remove(folder_ / "d.idx");
  fs::remove(folder_ / "d.bin");
  EXPECT_EQ(sample(3), before);
  dataset_.check_unchanged();
}

}  // namespace
}  // namespace megalith
