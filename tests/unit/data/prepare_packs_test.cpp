// prepare --sft, from conversations to packs and messages.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>

#include "core/data/pack_dataset.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"
#include "tests/unit/data/packed_files.h"

namespace megalith {
namespace {

constexpr const char* kTalk =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Ho\"}]}\n";

class PreparePacks : public testing::Test {
 protected:
  struct Run {
    int exit_code;
    std::string out, err;
  };
  Run run(const std::vector<std::string>& arguments) const {
    std::string command = MEGALITH_BIN_DIR "/prepare";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const int status = std::system(fmt::format("{} >'{}' 2>'{}'", command, logs_ / "out", logs_ / "err").c_str());
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = read_bytes(logs_ / "out"),
            .err = read_bytes(logs_ / "err")};
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"--sft",           "--input", folder_ / "a.jsonl", "--output-prefix", folder_ / "d",
                                    "--chat-template", "chatml"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Run pack(const std::vector<std::string>& more) const { return run(command(more)); }
  std::string error_of_pack(ExitCode code, const std::vector<std::string>& more) const {
    const Run outcome = pack(more);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code)) << outcome.err;
    return outcome.err;
  }

  TestFolder folder_, logs_;
};

TEST_F(PreparePacks, ConversationsToPacksAndBack) {
  write_bytes(folder_ / "a.jsonl", std::string(kTalk) + "\n" + kTalk + kTalk);
  const Run outcome = pack({"--seq-length", "160", "--pad-to-multiple", "8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("d.packs: 2 packs of 160 rows, 3 conversations, 195 tokens, 36 trained (byte-257) from 1 "
                              "file with 0.00 MB of text in "),
                    HasSubstr("60.9 % of the rows are tokens; 1.5 conversations per pack, at most 2; sum of squared "
                              "lengths per pack: at most 1.33 x the mean\n")));
  EXPECT_EQ(read_bytes(folder_ / "d.packs"),
            "seq_length 160\npad_multiple 8\npacks 2\ndocuments 3\ntokens 195\ntrained 36\n");
  EXPECT_EQ(read_bytes(folder_ / "d.tokenizer"), "tokenizer byte-257\ndocuments 2\ntokens 195\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / ""), {}), 7) << "a temporary file is left";

  const Run inspected = run({"inspect", folder_ / "d", "--documents", "1"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_THAT(inspected.out,
              StartsWith((folder_ / "d") +
                         ": 2 packs of 160 rows, 3 conversations, 195 tokens of type u16, 36 trained\n"
                         "  at most 2 conversations per pack, each padded to a multiple of 8 rows\n  pack 0: "));
  EXPECT_THAT(inspected.out,
              HasSubstr("    conversation 0: 65 tokens, 12 trained\n"
                        "      untrained \"<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n\"\n"
                        "      trained   \"Ho<|im_end|>\"\n"
                        "      untrained \"\\n\"\n"));
}

// Lines of several chunks and rounds, in two files.
TEST_F(PreparePacks, ThreadsChangeNothing) {
  std::map<std::string, int> written;
  for (const char* name : {"a.jsonl", "b.jsonl"}) {
    std::string lines;
    for (int i = 0; i < 4000; ++i) {
      const std::string content =
          fmt::format("{} of {}{}", i, name, std::string(static_cast<std::size_t>(i * 37 % 611), 'x'));
      ++written[content];
      lines += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}, {{\"role\": \"assistant\", "
          "\"content\": \"{}\"}}]}}\n",
          content);
    }
    write_bytes(folder_ / name, lines);
  }
  const std::vector<std::string> more = {"--input", folder_ / "b.jsonl", "--seq-length", "2048"};
  ASSERT_EQ(pack(more).exit_code, 0);
  const auto files = [&] {
    std::string bytes;
    for (const char* end : {".bin", ".idx", "_mask.bin", "_mask.idx", ".packs", ".tokenizer"})
      bytes += read_bytes(folder_ / (std::string("d") + end));
    return bytes;
  };
  const std::string before = files();
  std::vector<std::string> one_worker = more;
  one_worker.insert(one_worker.end(), {"--workers", "1"});
  ASSERT_EQ(pack(one_worker).exit_code, 0);
  EXPECT_TRUE(files() == before);
  write_bytes(folder_ / "b.jsonl.gz", gzip(read_bytes(folder_ / "b.jsonl")));
  ASSERT_EQ(pack({"--input", folder_ / "b.jsonl.gz", "--seq-length", "2048"}).exit_code, 0);
  EXPECT_TRUE(files() == before) << "from compressed lines";
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const int exit_code = pack(more).exit_code;
  ASSERT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
  ASSERT_EQ(exit_code, 0);
  EXPECT_TRUE(files() == before);

  // Each answer is trained once.
  const PackDataset data(folder_ / "d", {.seq_length = 2048, .vocab_size = 257});
  std::vector<std::int32_t> tokens(2049);
  SampleMarks marks;
  std::map<std::string, int> trained;
  for (std::int64_t k = 0; k < data.size(); ++k) {
    data.sample(k, tokens, &marks);
    std::size_t row = 0;
    for (const SampleDocument& document : marks.documents) {
      std::string text;
      for (std::size_t i = row; i < row + static_cast<std::size_t>(document.rows); ++i)
        if (marks.trained[i] != 0) text += static_cast<char>(tokens[i + 1]);
      row += static_cast<std::size_t>(document.rows);
      if (document.tokens > 0) ++trained[text.substr(0, text.find("<|im_end|>"))];
    }
  }
  EXPECT_EQ(trained, written);
}

TEST_F(PreparePacks, ConversationsAboveTheLength) {
  write_bytes(folder_ / "a.jsonl",
              std::string(kTalk) +
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
                  "\"content\": \"A long answer\"}]}\n");
  EXPECT_THAT(
      error_of_pack(ExitCode::kUsage, {"--seq-length", "70"}),
      AllOf(HasSubstr("--seq-length: expected at least 76, the tokens of the longest conversation, got 70, which "
                      "1 of 2 conversations exceeds; raise it, or use --sft-long truncate or --sft-long drop")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "d.idx"));

  const Run truncated = pack({"--seq-length", "70", "--sft-long", "truncate"});
  EXPECT_EQ(truncated.exit_code, 0) << truncated.err;
  EXPECT_THAT(truncated.err, HasSubstr("warning: 1 conversation above 70 tokens truncated (the longest has 76)"));
  EXPECT_THAT(truncated.out, HasSubstr("2 conversations, 135 tokens, 30 trained"));
  const Run dropped = pack({"--seq-length", "70", "--sft-long", "drop"});
  EXPECT_THAT(dropped.err, HasSubstr("warning: 1 conversation above 70 tokens skipped (the longest has 76)"));
  EXPECT_THAT(dropped.out, HasSubstr("1 conversation, 65 tokens, 12 trained"));
  const Run both = pack({"--seq-length", "50", "--sft-long", "truncate"});
  EXPECT_EQ(both.exit_code, static_cast<int>(ExitCode::kFormat));
  EXPECT_THAT(both.err, AllOf(HasSubstr("warning: 2 conversations without a trained token skipped"),
                              HasSubstr("a.jsonl: expected at least one conversation with a trained token, got none")));
}

TEST_F(PreparePacks, BadLines) {
  write_bytes(folder_ / "a.jsonl", std::string(kTalk) + "{\"messages\": 3}\n" + kTalk + "nothing\n");
  EXPECT_THAT(error_of_pack(ExitCode::kFormat, {"--seq-length", "70"}), HasSubstr("a.jsonl:2: "));
  EXPECT_THAT(error_of_pack(ExitCode::kFormat, {"--seq-length", "70", "--max-bad-lines", "1"}),
              AllOf(HasSubstr("a.jsonl:4: "), HasSubstr("a.jsonl:2: ")));
  const Run outcome = pack({"--seq-length", "70", "--max-bad-lines", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("warning: 2 bad lines skipped (--max-bad-lines 2), the first: "));
  EXPECT_THAT(outcome.out, HasSubstr("2 packs of 70 rows, 2 conversations"));
}

// A template that drops the reasoning of earlier answers, and a message after the last answer.
TEST_F(PreparePacks, LastAnswerOfTemplatesThatChangeEarlierOnes) {
  write_bytes(folder_ / "a.jsonl",
              "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", "
              "\"reasoning_content\": \"first\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"2\"}, "
              "{\"role\": \"assistant\", \"reasoning_content\": \"second\", \"content\": \"B\"}, "
              "{\"role\": \"user\", \"content\": \"3\"}]}\n");
  std::vector<std::string> arguments = command({"--seq-length", "200"});
  arguments[6] = MEGALITH_SOURCE_DIR "/tests/chat/templates/qwen3.jinja";
  const Run all = run(arguments);
  EXPECT_EQ(all.exit_code, static_cast<int>(ExitCode::kFormat));
  EXPECT_THAT(all.err, HasSubstr("as if the template changes earlier answers; train the last answer alone "
                                 "(--sft-train last)"));
  arguments.insert(arguments.end(), {"--sft-train", "last"});
  EXPECT_EQ(run(arguments).exit_code, 0);
  const std::string parts =
      "      untrained \"<|im_start|>user\\n1<|im_end|>\\n<|im_start|>assistant\\nA<|im_end|>\\n"
      "<|im_start|>user\\n2<|im_end|>\\n<|im_start|>assistant\\n\"\n"
      "      trained   \"<think>\\nsecond\\n</think>\\n\\nB<|im_end|>\\n\"\n";
  EXPECT_THAT(run({"inspect", folder_ / "d"}).out, EndsWith(parts));

  const Run read = run({"inspect", folder_ / "d", "--samples", "1", "--seq-length", "210", "--split", "1"});
  EXPECT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(read.out, "sample 0: 1 document, 37 trained\n  rows 0 to 150: 151 tokens\n" + parts +
                          "  rows 151 to 209: 0 tokens, 59 rows of padding\n");
}

TEST_F(PreparePacks, SamplesAsTrainingReadsThem) {
  write_bytes(folder_ / "a.jsonl", std::string(kTalk) + kTalk);
  ASSERT_EQ(pack({"--seq-length", "144", "--pad-to-multiple", "8"}).exit_code, 0);
  const std::string parts =
      "      untrained \"<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n\"\n"
      "      trained   \"Ho<|im_end|>\"\n      untrained \"\\n\"\n";
  EXPECT_EQ(run({"inspect", folder_ / "d", "--samples", "1", "--seq-length", "144", "--split", "1"}).out,
            "sample 0: 2 documents, 24 trained\n  rows 0 to 71: 65 tokens, 7 rows of padding\n" + parts +
                "  rows 72 to 143: 65 tokens, 7 rows of padding\n" + parts);

  write_bytes(folder_ / "t.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defgh\"}\n");
  ASSERT_EQ(run({"--input", folder_ / "t.jsonl", "--append-eod", "--output-prefix", folder_ / "t"}).exit_code, 0);
  const auto masked = [&](const std::string& mask) {
    return run({"inspect", folder_ / "t", "--samples", "1", "--seq-length", "9", "--split", "1", mask}).out;
  };
  const bool is_abc_first = masked("--dataloader-inter-document-masking").find("rows 0 to 3") != std::string::npos;
  EXPECT_EQ(masked("--dataloader-inter-document-masking"),
            is_abc_first
                ? "sample 0: 2 documents, 9 trained\n  rows 0 to 3: 4 tokens\n      untrained \"a\"\n      trained   "
                  "\"bc\"\n  rows 4 to 8: 5 tokens\n      trained   \"defgh\"\n"
                : "sample 0: 2 documents, 9 trained\n  rows 0 to 5: 6 tokens\n      untrained \"d\"\n      trained   "
                  "\"efgh\"\n  rows 6 to 8: 3 tokens\n      trained   \"abc\"\n");
  EXPECT_THAT(masked("--eod-mask-loss"), HasSubstr("sample 0: 1 document, 8 trained\n  rows 0 to 8: 9 tokens\n"));
}

TEST_F(PreparePacks, PromptFormatsOfMegatron) {
  write_bytes(folder_ / "a.jsonl", kTalk);
  const auto format = [&](const std::string& name) {
    std::vector<std::string> arguments = command({"--seq-length", "90"});
    arguments[5] = "--sft-tokenizer-prompt-format";
    arguments[6] = name;
    return run(arguments);
  };
  EXPECT_EQ(format("nemotron-nano-v2").exit_code, 0);
  EXPECT_THAT(run({"inspect", folder_ / "d"}).out,
              EndsWith("      untrained \"<SPECIAL_11>User\\nHi\\n<SPECIAL_11>Assistant\\n\"\n"
                       "      trained   \"Ho\\n<SPECIAL_12>\\n\"\n"));
  EXPECT_EQ(format("nemotron-h-aligned").exit_code, 0);
  EXPECT_EQ(format("identity").exit_code, 0);
  EXPECT_THAT(run({"inspect", folder_ / "d"}).out, EndsWith("untrained \"Hi\"\n      trained   \"Ho\"\n"));
  const Run own = format("default");
  EXPECT_EQ(own.exit_code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(own.err, AllOf(HasSubstr("--sft-tokenizer-prompt-format: expected one of nemotron-h-aligned, "
                                       "nemotron-nano-v2, identity, got 'default'"),
                             HasSubstr("--chat-template")));
}

TEST_F(PreparePacks, TemplateOfTheTokenizersFolderOrAFile) {
  write_bytes(folder_ / "a.jsonl", kTalk);
  std::filesystem::create_directory(folder_ / "model");
  write_bytes(folder_ / "model/tokenizer.json", read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/llama3.json"));
  const std::vector<std::string> arguments = {
      "--sft", "--input",          folder_ / "a.jsonl",    "--output-prefix",   folder_ / "d",    "--seq-length",
      "64",    "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder_ / "model"};
  const Run without = run(arguments);
  EXPECT_EQ(without.exit_code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(without.err, HasSubstr("which has no chat template"));

  const std::string body =
      "{% for m in messages %}{{ m.role[0] }}:\n{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }};{% endgeneration %}{% else %}{{ m.content }}, {% endif %}{% endfor %}";
  write_bytes(folder_ / "model/chat_template.jinja", "F " + body);
  write_bytes(folder_ / "other.jinja", "O " + body);
  const auto inspected = [&] {
    return run({"inspect", folder_ / "d", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model",
                folder_ / "model"})
        .out;
  };
  EXPECT_EQ(run(arguments).exit_code, 0);
  EXPECT_THAT(inspected(), AllOf(HasSubstr("untrained \"F u:\\nHi, a:\\n\"\n"), HasSubstr("trained   \"Ho;\"\n")));
  std::vector<std::string> with_file = arguments;
  with_file.insert(with_file.end(), {"--chat-template", folder_ / "other.jinja"});
  EXPECT_EQ(run(with_file).exit_code, 0);
  EXPECT_THAT(inspected(), HasSubstr("untrained \"O u:\\nHi, a:\\n\"\n"));

  const Run unnamed =
      run({"--sft", "--input", folder_ / "a.jsonl", "--output-prefix", folder_ / "d", "--seq-length", "9"});
  EXPECT_EQ(unnamed.exit_code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(unnamed.err, HasSubstr("--chat-template: expected a template, since the tokenizer has no folder"));
}

TEST_F(PreparePacks, BadCommandLines) {
  write_bytes(folder_ / "a.jsonl", kTalk);
  const auto usage = [&](const std::vector<std::string>& more) { return error_of_pack(ExitCode::kUsage, more); };
  EXPECT_THAT(usage({}), HasSubstr("--sft only with --seq-length"));
  EXPECT_THAT(usage({"--seq-length", "70", "--pad-to-multiple", "8"}),
              HasSubstr("--seq-length and --pad-to-multiple: expected --pad-to-multiple that divides --seq-length"));
  EXPECT_THAT(usage({"--seq-length", "70", "--append-eod"}), HasSubstr("--sft and --append-eod: expected one of them"));
  EXPECT_THAT(usage({"--seq-length", "70", "--sft-long", "cut"}), HasSubstr("--sft-long: expected error, truncate"));
  write_bytes(folder_ / "b.txt", kTalk);
  EXPECT_THAT(usage({"--seq-length", "70", "--input", folder_ / "b.txt"}),
              HasSubstr("--input: expected with --sft names in .jsonl or .json, got "));
  for (const std::vector<std::string>& alone : {std::vector<std::string>{"--pad-to-multiple", "8"},
                                                {"--sft-long", "drop"},
                                                {"--chat-template", "chatml"},
                                                {"--seq-length", "70"}}) {
    std::vector<std::string> all = {"--input", folder_ / "a.jsonl", "--output-prefix", folder_ / "d"};
    all.insert(all.end(), alone.begin(), alone.end());
    const Run outcome = run(all);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kUsage));
    EXPECT_THAT(outcome.err, HasSubstr(alone[0] + " only with --sft"));
  }
}

}  // namespace
}  // namespace megalith
