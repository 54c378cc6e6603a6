// Files of packs: what they hold, and what a fault or a power loss between them leaves.
#include <map>

#include "core/base/files/fault.h"
#include "core/data/pack_dataset.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/pack_files.h"
#include "tests/unit/parallel/disk_model.h"

namespace megalith {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens sequence_of(const IndexedDataset& data, std::int64_t s) {
  Tokens tokens(static_cast<std::size_t>(data.sequence_length(s)));
  data.read(s, 0, tokens);
  return tokens;
}

TEST(PackWriterTest, FilesAndRecord) {
  const TestFolder folder;
  write_packs(folder / "d", {{5, 3}, {8}, {2, 1, 1}},
              {.seq_length = 12, .pad_multiple = 4, .token_type = TokenType::kU16, .tokenizer = "byte-257"});
  const IndexedDataset data = IndexedDataset::open(folder / "d"), mask = IndexedDataset::open(folder / "d_mask");
  EXPECT_EQ(data.token_type(), TokenType::kU16);
  EXPECT_EQ(mask.token_type(), TokenType::kU8);
  EXPECT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.num_sequences(), 6);
  EXPECT_EQ(data.document_begin(1), 2);
  EXPECT_EQ(data.document_begin(2), 3);
  EXPECT_EQ(sequence_of(data, 1), (Tokens{100, 101, 102}));
  EXPECT_EQ(sequence_of(mask, 1), (Tokens{0, 1, 0})) << "the first token is no prediction";
  EXPECT_EQ(sequence_of(mask, 0), (Tokens{0, 1, 1, 0, 1}));
  EXPECT_EQ(read_bytes(folder / "d.packs"),
            "seq_length 12\npad_multiple 4\npacks 3\ndocuments 6\ntokens 20\ntrained 9\n");
  EXPECT_EQ(read_pack_record(folder / "d"),
            (PackRecord{.seq_length = 12, .pad_multiple = 4, .packs = 3, .documents = 6, .tokens = 20, .trained = 9}));
  EXPECT_EQ(recorded_tokenizer(data), "byte-257");
}

TEST(PackWriterTest, OrdinaryDatasetOfThePrefixIsNoPacks) {
  const TestFolder folder;
  write_packs(folder / "d", {{5, 3}}, {.seq_length = 8});
  write_golden_dataset(folder / "d", 5, 41);
  EXPECT_EQ(read_pack_record(folder / "d"), std::nullopt);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { PackDataset(folder / "d", {.seq_length = 8, .vocab_size = 251}); }),
              AllOf(HasSubstr("d.packs: expected the record of packs"), HasSubstr("prepare the data with --sft")));
}

TEST(PackWriterTest, LeavesTheOldDatasetWithoutCommit) {
  const TestFolder folder;
  write_packs(folder / "d", {{5, 3}}, {.seq_length = 8});
  const std::string before = read_bytes(folder / "d.packs") + read_bytes(folder / "d.idx");
  {
    PackWriter writer(folder / "d", {.seq_length = 4});
    writer.add_document(Tokens{1, 2}, std::vector<std::uint8_t>{1, 1});
    writer.end_pack();
  }
  EXPECT_EQ(read_bytes(folder / "d.packs") + read_bytes(folder / "d.idx"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / ""), {}), 5) << "a temporary file is left";
}

TEST(PackRecordTest, DamagedRecords) {
  const std::string good = "seq_length 12\npad_multiple 4\npacks 3\ndocuments 6\ntokens 20\ntrained 9\n";
  const auto parse = [](const std::string& text) { return parse_pack_record(text, "d.packs"); };
  EXPECT_EQ(to_text(parse(good)), good);
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of(ExitCode::kFormat, [&] { parse(text); });
  };
  EXPECT_THAT(error("seq_length 12", "seq_length 0"), HasSubstr("d.packs: expected seq_length 1 to 2147483647, got 0"));
  EXPECT_THAT(error("seq_length 12", "seq_length 2147483648"), HasSubstr("got 2147483648"));
  EXPECT_THAT(error("multiple 4", "multiple 5"), HasSubstr("a pad_multiple that divides 12, got 5"));
  EXPECT_THAT(error("multiple 4", "multiple 0"), HasSubstr("a pad_multiple that divides 12"));
  EXPECT_THAT(error("packs 3", "packs -3"), HasSubstr("a number after 'packs'"));
  EXPECT_THAT(error("packs 3", "packs 7"), HasSubstr("packs <= documents <= tokens"));
  EXPECT_THAT(error("documents 6", "documents 21"), HasSubstr("packs <= documents <= tokens"));
  EXPECT_THAT(error("trained 9", "trained 21"), HasSubstr("trained <= tokens"));
  EXPECT_THAT(error("tokens 20\n", ""), HasSubstr("a line 'tokens ...'"));
  EXPECT_THAT(error("trained 9\n", "trained 9"), HasSubstr("a line 'trained ...'"));
  EXPECT_THAT(error("trained 9\n", "trained 9\n\n"), HasSubstr("the end of the record"));
}

// "old", "new", "none", or any other state. Both datasets have packs of equal lengths.
std::string state_of_packs(const std::string& prefix) {
  if (!read_pack_record(prefix)) return "none";
  const PackDataset data(prefix, {.seq_length = 4, .vocab_size = 100});
  std::string text;
  SampleMarks marks;
  Tokens tokens(5);
  for (std::int64_t k = 0; k < data.size(); ++k) {
    data.sample(k, tokens, &marks);
    for (std::size_t i = 0; i < 4; ++i) text += fmt::format("{}{} ", tokens[i], marks.trained[i] != 0 ? "+" : "");
  }
  if (text == "1 1 1 1 1 1 1 1 ") return "old";
  return text == "2+ 2+ 2+ 2 2+ 2+ 2+ 2 " ? "new" : text;
}

void write_equal_packs(const std::string& prefix, std::int32_t token, const FileObserver* observer = nullptr) {
  const auto is_new = static_cast<std::uint8_t>(token == 2);
  PackWriter writer(prefix, {.seq_length = 4, .token_type = TokenType::kU8, .tokenizer = "t", .observer = observer});
  for (int pack = 0; pack < 2; ++pack) {
    writer.add_document(Tokens(4, token), std::vector<std::uint8_t>(4, is_new));
    writer.end_pack();
  }
  writer.commit();
}

// The record of the old packs would fit the new tokens, and the old mask the new tokens.
TEST(PackWriterTest, PowerLossLeavesTheOldTheNewOrNoPacks) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "data");
  write_equal_packs(folder / "data/d", 1);
  DiskModel disk(folder / "data");
  const FileObserver observer = disk.observer();
  write_equal_packs(folder / "data/d", 2, &observer);
  std::map<std::string, int> states;
  for (std::size_t count = 0; count <= disk.size(); ++count) {
    const std::size_t pending = disk.unsynced(count).size();
    ASSERT_LE(pending, 12u);
    for (std::size_t n = 0; n < std::size_t{1} << pending; ++n) {
      std::vector<bool> kept(pending);
      for (std::size_t i = 0; i < pending; ++i) kept[i] = (n >> i & 1) != 0;
      std::filesystem::remove_all(folder / "replayed");
      std::filesystem::create_directory(folder / "replayed");
      disk.replay(count, kept, folder / "replayed");
      const std::string state = state_of_packs(folder / "replayed/d");
      ++states[state];
      EXPECT_TRUE(state == "old" || state == "none" || state == "new") << state << " after " << count;
      if (count == disk.size()) {
        EXPECT_EQ(state, "new") << "commit() returned before its names were on the disk";
      }
    }
  }
  EXPECT_EQ(states.size(), 3u);
}

TEST(PackWriterTest, EachFileFaultLeavesTheOldTheNewOrNoPacks) {
  int struck = 0;
  for (const std::string& site : fault_sites()) {
    if (!site.starts_with("prepare.output.")) continue;
    for (int at = 1; at <= 8; ++at) {
      const TestFolder folder;
      write_equal_packs(folder / "d", 1);
      try {
        arm_faults({parse_fault(fmt::format("{}:{}:eio", site, at))});
      } catch (const Error&) {
        continue;  // the fault cannot happen there
      }
      try {
        write_equal_packs(folder / "d", 2);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kFileIo) << site << " " << at;
      }
      struck += static_cast<int>(faults_fired());
      disarm_faults();
      const std::string state = state_of_packs(folder / "d");
      EXPECT_TRUE(state == "old" || state == "none" || state == "new") << site << " " << at << ": " << state;
      for (const auto& entry : std::filesystem::directory_iterator(folder / ""))
        EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << site << " " << at;
    }
  }
  EXPECT_GT(struck, 20);
}

}  // namespace
}  // namespace megalith
