// A power loss at any operation of prepare's commit, with any of the unsynced changes lost. The disk's content opens as
// the old dataset or the new one, or does not open. Tokens of one never open with the index of the other.
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/data/data_files.h"
#include "tests/unit/parallel/disk_model.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

// Documents of one token each, all of it `token`: an index fits the tokens of the other dataset.
void write(const std::string& prefix, std::int32_t token, int documents, const FileObserver* observer = nullptr) {
  IndexedDatasetWriter writer(prefix, TokenType::kU16, {}, observer);
  for (int i = 0; i < documents; ++i) writer.add_document(Ids{token, token});
  writer.commit();
}

// "old", "new", "none", or any other state.
std::string state_of(const std::string& prefix) {
  if (!fs::exists(prefix + ".idx")) return "none";
  const IndexedDataset data = IndexedDataset::open(prefix);
  std::string tokens;
  for (std::int64_t s = 0; s < data.num_sequences(); ++s) {
    Ids ids(2);
    data.read(s, 0, ids);
    for (const std::int32_t id : ids) tokens += std::to_string(id);
  }
  return tokens == "111111" ? "old" : tokens == "2222" ? "new" : tokens;
}

TEST(PreparePowerLoss, LeavesTheOldTheNewOrNoDataset) {
  const TestFolder folder;
  fs::create_directory(folder / "data");
  write(folder / "data/d", 1, 3);
  DiskModel disk(folder / "data");
  const FileObserver observer = disk.observer();
  write(folder / "data/d", 2, 2, &observer);
  std::map<std::string, int> states;
  for (std::size_t count = 0; count <= disk.size(); ++count) {
    const std::size_t pending = disk.unsynced(count).size();
    ASSERT_LE(pending, 10u);
    for (std::size_t n = 0; n < std::size_t{1} << pending; ++n) {
      std::vector<bool> kept(pending);
      for (std::size_t i = 0; i < pending; ++i) kept[i] = (n >> i & 1) != 0;
      fs::remove_all(folder / "replayed");
      fs::create_directory(folder / "replayed");
      disk.replay(count, kept, folder / "replayed");
      const std::string state = state_of(folder / "replayed/d");
      ++states[state];
      EXPECT_TRUE(state == "old" || state == "none" || state == "new") << state << " after " << count;
      if (count == disk.size()) {
        EXPECT_EQ(state, "new") << "commit() returned before its names were on the disk";
      }
    }
  }
  EXPECT_EQ(states.size(), 3u);
}

}  // namespace
}  // namespace megalith
