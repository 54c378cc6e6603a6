// The program prepare, from the command line to its files and messages.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/data/dataset.h"
#include "core/data/indexed_dataset.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"
#include "tests/unit/data/packed_files.h"

namespace megalith {
namespace {

using Tokens = std::vector<std::int32_t>;

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

class Prepare : public testing::Test {
 protected:
  Outcome run(const std::vector<std::string>& arguments) {
    std::string command = MEGALITH_BIN_DIR "/prepare";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const int status = std::system(fmt::format("{} >'{}' 2>'{}'", command, folder_ / "out", folder_ / "err").c_str());
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = read_bytes(folder_ / "out"),
            .err = read_bytes(folder_ / "err")};
  }
  // The message of a run that must fail: one line, no matter how wrong the input.
  std::string error_of_run(ExitCode code, const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("prepare: error: "));
    return outcome.err;
  }

  TestFolder folder_;
};

TEST_F(Prepare, TextToTokensAndBack) {
  write_bytes(folder_ / "a.txt", "Title\nChapter 1\nIt was.\nChapter 2\nIt is.\n");
  write_bytes(folder_ / "b.jsonl", "{\"text\": \"caf\\u00e9\"}\n");
  const Outcome outcome = run({"--input", folder_ / "a.txt", "--input", folder_ / "b.jsonl", "--output-prefix",
                               folder_ / "d", "--document-start", "Chapter", "--append-eod"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("4 documents, 50 tokens (byte-257) from 2 files"), EndsWith("MB/s\n")));

  const IndexedDataset data = IndexedDataset::open(folder_ / "d");
  EXPECT_EQ(data.token_type(), TokenType::kU16);
  EXPECT_EQ(read_bytes(folder_ / "d.tokenizer"), "tokenizer byte-257\ndocuments 4\ntokens 50\n");
  EXPECT_EQ(recorded_tokenizer(data), "byte-257");
  ASSERT_EQ(data.num_sequences(), 4);
  std::vector<std::string> texts;
  for (std::int64_t s = 0; s < 4; ++s) {
    Tokens tokens(static_cast<std::size_t>(data.sequence_length(s)));
    data.read(s, 0, tokens);
    EXPECT_EQ(tokens.back(), 256);
    texts.push_back(Tokenizer().decode(tokens));
  }
  EXPECT_THAT(texts, testing::ElementsAre("Title\n", "Chapter 1\nIt was.\n", "Chapter 2\nIt is.\n", "caf\xc3\xa9"));

  const Outcome inspected = run({"inspect", folder_ / "d", "--documents", "2"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_EQ(inspected.out, (folder_ / "d") +
                               ": 4 documents, 4 sequences, 50 tokens of type u16 (100 bytes)\n"
                               "  tokens per sequence: 6 to 19, 12.5 on average\n"
                               "  document 0: 7 tokens, the last is EOD: \"Title\\n\"\n"
                               "  document 1: 19 tokens, the last is EOD: \"Chapter 1\\nIt was.\\n\"\n");
}

TEST_F(Prepare, CommittedNovels) {
  const std::string texts = MEGALITH_SOURCE_DIR "/configs/text";
  const Outcome outcome = run({"--input", texts + "/pride_and_prejudice.txt", texts + "/sense_and_sensibility.txt",
                               "--output-prefix", folder_ / "austen", "--document-start", "Chapter", "--append-eod"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const IndexedDataset data = IndexedDataset::open(folder_ / "austen");
  EXPECT_EQ(data.num_documents(), 113);  // 61 and 50 chapters, two title pages
  EXPECT_EQ(data.num_tokens(), 1354348 + 113);
  // Enough held out to measure a validation loss on.
  const Datasets datasets = build_datasets({.data_path = {folder_ / "austen"},
                                            .split = "95,5,0",
                                            .seq_length = 256,
                                            .vocab_size = 257,
                                            .num_samples = {.train = 1000, .valid = 200}});
  EXPECT_GE(datasets.valid.size(), 200);
}

TEST_F(Prepare, SamplesAreThoseOfTraining) {
  write_golden_dataset(folder_ / "a", 30, 41);
  write_golden_dataset(folder_ / "b", 12, 67);
  const std::vector<std::string> data_path = {"0.3", folder_ / "a", "0.7", folder_ / "b"};
  const Datasets datasets = build_datasets({.data_path = data_path,
                                            .split = "80,20",
                                            .seed = 77,
                                            .seq_length = 8,
                                            .vocab_size = 251,
                                            .num_samples = {.train = 150 * 4}});
  std::vector<std::string> arguments = {"inspect"};
  arguments.insert(arguments.end(), data_path.begin(), data_path.end());
  for (const char* more : {"--samples", "25", "--seq-length", "8", "--seed", "77", "--split", "80,20", "--train-iters",
                           "150", "--global-batch-size", "4"}) {
    arguments.emplace_back(more);
  }
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string line;
  std::int64_t k = 0;
  for (; std::getline(lines, line); ++k) {
    Tokens tokens(9);
    datasets.train.sample(k, tokens);
    EXPECT_EQ(nlohmann::json::parse(line).get<Tokens>(), tokens) << k;
  }
  EXPECT_EQ(k, 25);
}

TEST_F(Prepare, NumberOfSamplesDecidesTheEpochs) {
  write_golden_dataset(folder_ / "a", 30, 41);
  const auto samples = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"inspect", folder_ / "a", "--samples", "10", "--seq-length", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments).out;
  };
  EXPECT_EQ(samples({}), samples({"--train-samples", "40"}));   // one epoch both
  EXPECT_NE(samples({}), samples({"--train-samples", "900"}));  // several, shuffled together
  EXPECT_EQ(samples({"--train-iters", "90", "--global-batch-size", "10"}), samples({"--train-samples", "900"}));
  EXPECT_NE(samples({}), samples({"--seed", "3"}));
}

TEST_F(Prepare, VersionAndHelp) {
  EXPECT_THAT(run({"--version"}).out, StartsWith("megalith prepare 0.2.0"));
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("--output-prefix"), HasSubstr("inspect")));
  const std::string inspect_help = run({"inspect", "--help"}).out;
  EXPECT_THAT(inspect_help, HasSubstr("--samples"));
  EXPECT_THAT(inspect_help, HasSubstr("length of a sample [default none;")) << "required by train alone";
}

TEST_F(Prepare, BadCommandLines) {
  const auto usage = [&](const std::vector<std::string>& arguments) {
    return error_of_run(ExitCode::kUsage, arguments);
  };
  EXPECT_THAT(usage({}), HasSubstr("--input"));
  EXPECT_THAT(usage({"--input", "x"}), HasSubstr("--output-prefix"));
  EXPECT_THAT(usage({"--inptu", "x"}), HasSubstr("--inptu: unknown flag of prepare; did you mean --input?"));
  EXPECT_THAT(usage({"--out-prefix=x"}),
              HasSubstr("--out-prefix: unknown flag of prepare; did you mean --output-prefix?"));
  EXPECT_THAT(usage({"word"}), HasSubstr("\"word\": an argument without a flag"));
  EXPECT_THAT(usage({"--input", "x", "--output-prefix", "y", "--json-keys"}), HasSubstr("--json-keys"));
  EXPECT_THAT(usage({"--input", "x", "--output-prefix", "y", "--tokenizer-type", "bpe"}),
              HasSubstr("expected byte, null, GPT2"));
  EXPECT_THAT(usage({"--input", "x", "--output-prefix", "y", "--document-start", ""}), HasSubstr("--document-start"));
  EXPECT_THAT(usage({"inspect"}), HasSubstr("a prefix"));
  EXPECT_THAT(usage({"inspect", "x", "--seq-len", "3"}), HasSubstr("--seq-len: unknown flag of prepare"));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "0", "--seq-length", "3"}),
              HasSubstr("--samples: expected an integer from 1 to"));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "3x", "--seq-length", "3"}), HasSubstr("got \"3x\""));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "99999999999999999999", "--seq-length", "3"}),
              HasSubstr("--samples"));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "3"}), HasSubstr("--seq-length"));
  EXPECT_THAT(usage({"inspect", "x", "--seq-length", "3"}), HasSubstr("--samples"));
  EXPECT_THAT(usage({"inspect", "x", "--seed", "4294967296"}),
              HasSubstr("--seed: expected an integer from 0 to 4294967295"));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "3", "--seq-length", "3", "--train-iters", "3"}),
              HasSubstr("--global-batch-size"));
  EXPECT_THAT(usage({"inspect", "x", "--seed", "3"}), HasSubstr("--seed only with --samples"));
  EXPECT_THAT(usage({"inspect", "x", "--samples", "30", "--seq-length", "3", "--train-samples", "3"}),
              HasSubstr("--samples: expected at most the 3 samples"));
}

TEST_F(Prepare, BadSplit) {
  write_golden_dataset(folder_ / "a", 30, 41);
  EXPECT_THAT(error_of_run(ExitCode::kUsage,
                           {"inspect", folder_ / "a", "--samples", "3", "--seq-length", "3", "--split", "0,100,0"}),
              HasSubstr("--split"));
}

TEST_F(Prepare, UnreadableAndDamagedFiles) {
  EXPECT_THAT(error_of_run(ExitCode::kFileIo, {"--input", folder_ / "no.txt", "--output-prefix", folder_ / "d"}),
              HasSubstr("no.txt"));
  write_bytes(folder_ / "a.txt", "text");
  EXPECT_THAT(error_of_run(ExitCode::kFileIo, {"--input", folder_ / "a.txt", "--output-prefix", folder_ / "a.txt/d"}),
              HasSubstr("a.txt"));
  write_bytes(folder_ / "b.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  EXPECT_THAT(error_of_run(ExitCode::kFormat, {"--input", folder_ / "b.jsonl", "--output-prefix", folder_ / "d"}),
              HasSubstr("b.jsonl:2"));
  write_bytes(folder_ / "e.txt", "\n");
  EXPECT_THAT(error_of_run(ExitCode::kFormat, {"--input", folder_ / "e.txt", "--output-prefix", folder_ / "d"}),
              HasSubstr("at least one document"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "d.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "d.idx"));

  EXPECT_THAT(error_of_run(ExitCode::kFileIo, {"inspect", folder_ / "d"}), HasSubstr("d.idx"));
  write_golden_dataset(folder_ / "d", 5, 41);
  write_bytes(folder_ / "d.idx", read_bytes(folder_ / "d.idx").substr(0, 50));
  EXPECT_THAT(error_of_run(ExitCode::kFormat, {"inspect", folder_ / "d"}), HasSubstr("d.idx: size"));
}

TEST_F(Prepare, SkipsBadLinesAndNamesTheFirst) {
  write_bytes(folder_ / "a.jsonl", "{\"text\": \"ab\"}\nnothing\n{\"text\": \"c\"}\n{\"txt\": \"d\"}\n");
  const std::vector<std::string> arguments = {"--input", folder_ / "a.jsonl", "--output-prefix", folder_ / "d",
                                              "--max-bad-lines"};
  const auto with = [&](const std::string& lines) {
    std::vector<std::string> all = arguments;
    all.push_back(lines);
    return all;
  };
  EXPECT_THAT(error_of_run(ExitCode::kFormat, with("1")), AllOf(HasSubstr("a.jsonl:4: "), HasSubstr("a.jsonl:2: ")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "d.idx"));
  const Outcome outcome = run(with("2"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2 documents, 3 tokens"));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning: 2 bad lines skipped (--max-bad-lines 2), the first: "),
                                 HasSubstr("a.jsonl:2: expected a JSON object")));
}

TEST_F(Prepare, MakesItsFolder) {
  write_bytes(folder_ / "a.txt", "text");
  const Outcome outcome = run({"--input", folder_ / "a.txt", "--output-prefix", folder_ / "new/folder/d"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("d.idx: 1 document, 4 tokens (byte-257) from 1 file with"));
  EXPECT_EQ(IndexedDataset::open(folder_ / "new/folder/d").num_tokens(), 4);
}

// Many chunks and rounds, from files of all kinds.
TEST_F(Prepare, WorkersChangeNothing) {
  std::string lines, text;
  for (int i = 0; i < 20'000; ++i) {
    const std::string words =
        fmt::format("{} caf\u00e9 {}", i, std::string(static_cast<std::size_t>(i * 37 % 611), 'x'));
    lines += fmt::format("{{\"text\": \"{}\"}}\n", words);
    text += fmt::format("Chapter {}\n{}\n", i, words);
  }
  write_bytes(folder_ / "a.jsonl", lines);
  write_bytes(folder_ / "b.jsonl.gz", gzip(lines));
  write_bytes(folder_ / "c.txt", text);
  write_bytes(folder_ / "d.txt", zstd(text));
  const auto written = [&](const std::string& workers) {
    const Outcome outcome =
        run({"--input", folder_ / "a.jsonl", folder_ / "b.jsonl.gz", folder_ / "c.txt", folder_ / "d.txt",
             "--output-prefix", folder_ / "d", "--document-start", "Chapter", "--append-eod", "--workers", workers});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "") << "no status line, since this is no terminal";
    EXPECT_THAT(outcome.out, HasSubstr("d.idx: 80000 documents, "));
    return read_bytes(folder_ / "d.bin") + read_bytes(folder_ / "d.idx") + read_bytes(folder_ / "d.tokenizer");
  };
  const std::string one = written("1");
  for (const char* workers : {"2", "3", "16"}) EXPECT_TRUE(written(workers) == one) << workers;

  const IndexedDataset data = IndexedDataset::open(folder_ / "d");
  std::string decoded;
  for (std::int64_t s = 40'000; s < 80'000; ++s) {
    Tokens tokens(static_cast<std::size_t>(data.sequence_length(s)));
    data.read(s, 0, tokens);
    decoded += Tokenizer().decode(tokens);
  }
  EXPECT_TRUE(decoded == text + text);
  EXPECT_THAT(error_of_run(ExitCode::kUsage, {"--input", "x", "--output-prefix", "y", "--workers", "0"}),
              HasSubstr("--workers: expected an integer from 1 to 1024"));
}

// The first error in the order of the inputs ends the program, whichever thread meets one first.
TEST_F(Prepare, WorkersReportTheSameError) {
  std::string lines;
  for (int i = 0; i < 50'000; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i);
  write_bytes(folder_ / "a.jsonl", lines + "bad\n" + lines);
  write_bytes(folder_ / "b.jsonl", gzip(lines).substr(0, 60'000));
  const auto error = [&](const std::string& workers, const std::string& bad_lines) {
    return error_of_run(ExitCode::kFormat, {"--input", folder_ / "a.jsonl", folder_ / "b.jsonl", "--output-prefix",
                                            folder_ / "d", "--workers", workers, "--max-bad-lines", bad_lines});
  };
  for (const char* workers : {"1", "2", "7"}) {
    EXPECT_THAT(error(workers, "0"), HasSubstr("a.jsonl:50001: expected a JSON object")) << workers;
    EXPECT_THAT(error(workers, "1"), HasSubstr("b.jsonl: expected complete gzip data, got an end within it at byte "
                                               "60000; copy or pack the file again"))
        << workers;
  }
}

// Rejected ahead of any read or write.
TEST_F(Prepare, RefusesPackedInputsByName) {
  write_bytes(folder_ / "a.jsonl", "{\"text\": \n");
  write_bytes(folder_ / "b.jsonl.bz2", "BZh91AY&SY and so on");
  EXPECT_THAT(error_of_run(ExitCode::kFormat, {"--input", folder_ / "a.jsonl", folder_ / "b.jsonl.bz2",
                                               "--output-prefix", folder_ / "no/d"}),
              HasSubstr("b.jsonl.bz2: expected text or JSON lines, got bzip2 data; unpack it first: bzip2 -dk "));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
}

TEST_F(Prepare, FailedRunLeavesTheOldDataset) {
  write_golden_dataset(folder_ / "d", 5, 41);
  const std::string before = read_bytes(folder_ / "d.idx");
  write_bytes(folder_ / "b.jsonl", "{\"text\": \"a\"}\nnothing\n");
  error_of_run(ExitCode::kFormat, {"--input", folder_ / "b.jsonl", "--output-prefix", folder_ / "d"});
  EXPECT_EQ(read_bytes(folder_ / "d.idx"), before);
}

}  // namespace
}  // namespace megalith
