#include "tests/unit/apps/golden_messages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "apps/flags/flags.h"
#include "apps/train/trainer.h"
#include "core/base/error.h"
#include "core/data/indexed_dataset.h"
#include "tests/support/words.h"
#include "tests/thread_ranks/thread_communicator.h"
#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/parse_run.h"

namespace megalith::test {

namespace {

namespace fs = std::filesystem;

const Words& tiny() {
  static const Words kFlags = words(
      "--device cpu --num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --train-iters 2 "
      "--micro-batch-size 2 --lr 1e-3 --eval-iters 0");
  return kFlags;
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
    } else if (text.compare(i, 2, "\\n") == 0) {
      out += '\n';
      ++i;
    } else if (text.compare(i, 2, "\\x") == 0) {
      out += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else {
      out += text.at(++i);
    }
  }
  return out;
}

Words words_of(const std::string& step) {
  static const std::regex kWord(R"('([^']*)'|(\S+))");
  Words words;
  for (std::sregex_iterator at(step.begin(), step.end(), kWord); at != std::sregex_iterator(); ++at) {
    const bool is_quoted = (*at)[1].matched;
    if (!is_quoted && (*at)[2] == "TINY") {
      words.insert(words.end(), tiny().begin(), tiny().end());
    } else {
      words.push_back(unescaped(is_quoted ? (*at)[1] : (*at)[2]));
    }
  }
  return words;
}

std::string outcome_of_error(const Error& error) {
  return fmt::format("exit {}: {}", static_cast<int>(error.code()), error.what());
}

// As apps/train/main.cpp on one rank.
void train(const Words& arguments) {
  StopRequest stop;
  ThreadWorld(1).run([&](Communicator& world) {
    FoundCheckpoint found;
    const Parsed parsed = parse_run(arguments, world, found);
    find_start(parsed.options, world, found);
    Trainer trainer(prepare_run(parsed.options, 0, 1, std::move(found)), world, stop);
    trainer.run();
  });
}

std::string outcome_of_process(const std::string& name, const Words& arguments) {
  const std::string program = MEGALITH_BIN_DIR "/" + name;
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("stdout", "w", stdout) == nullptr || std::freopen("stderr", "w", stderr) == nullptr) _exit(126);
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (const std::string& word : arguments) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return "no exit code";
  if (WEXITSTATUS(status) == 0) return "no error";
  std::string line = read_file("stderr");
  const std::string start = name + ": error: ";
  if (!line.starts_with(start) || line.find('\n') + 1 != line.size()) return "not one line of an error: " + line;
  return fmt::format("exit {}: {}", WEXITSTATUS(status), line.substr(start.size(), line.size() - start.size() - 1));
}

void make_text(const std::string& prefix) {
  IndexedDatasetWriter writer(prefix, TokenType::kU16, "byte-257");
  for (const std::string text : {"It is a truth universally acknowledged", "that a single man in possession", "of a"}) {
    std::vector<std::int32_t> tokens(text.begin(), text.end());
    tokens.push_back(256);
    writer.add_document(tokens);
  }
  writer.commit();
}

void overwrite(const std::string& name, std::int64_t byte, const std::string& text) {
  std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(byte);
  file << text;
  ASSERT_TRUE(file.flush()) << name;
}

void prepare(const std::string& step) {
  const std::size_t colon = step.find(':');
  const bool has_text = step.starts_with("file ") || step.starts_with("set ");
  const Words words = words_of(has_text ? step.substr(0, colon) : step);
  const std::string text = has_text ? unescaped(step.substr(std::min(colon + 2, step.size()))) : "";
  const std::string& verb = words.at(0);
  if (verb == "file") {
    std::ofstream(words.at(1), std::ios::binary) << text;
  } else if (verb == "set") {
    overwrite(words.at(1), std::stoll(words.at(2)), text);
  } else if (verb == "cut") {
    fs::resize_file(words.at(1), std::stoull(words.at(2)));
  } else if (verb == "folder") {
    fs::create_directories(words.at(1));
  } else if (verb == "copy") {
    fs::copy(words.at(1), words.at(2), fs::copy_options::recursive);
  } else if (verb == "remove") {
    ASSERT_GT(fs::remove_all(words.at(1)), 0u) << words.at(1);
  } else if (verb == "text") {
    make_text(words.at(1));
  } else if (verb == "checkpoint") {
    Words flags = tiny();
    for (const char* flag : {"--mock-data", "--save-interval", "1", "--save"}) flags.emplace_back(flag);
    flags.insert(flags.end(), words.begin() + 1, words.end());
    train(flags);
  } else {
    FAIL() << "unknown step: " << step;
  }
}

std::string outcome_of_step(const std::string& step) {
  const Words words = words_of(step);
  const Words arguments(words.begin() + 2, words.end());
  try {
    if (words[0] == "call") {
      golden_calls().at(words[1])(arguments);
    } else if (words[1] == "train") {
      train(arguments);
    } else {
      return outcome_of_process(words[1], arguments);
    }
  } catch (const Error& error) {
    return outcome_of_error(error);
  }
  return "no error";
}

}  // namespace

std::vector<GoldenMessage> golden_messages(const std::string& file) {
  const std::string folder = MEGALITH_SOURCE_DIR "/tests/golden_messages/";
  std::istringstream lines(read_file(folder + file));
  std::vector<GoldenMessage> messages;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      messages.push_back({.file = file, .line = number, .title = line, .steps = {}, .expected = {}});
    } else if (line.starts_with("  exit ")) {
      messages.back().expected = line.substr(2);
    } else {
      messages.back().steps.push_back(line.substr(2));
    }
  }
  return messages;
}

std::string outcome_of(const GoldenMessage& message) {
  for (std::size_t i = 0; i + 1 < message.steps.size(); ++i) prepare(message.steps[i]);
  static const std::regex kPlace(R"(\b((?:apps|core|parallel)/[a-z0-9_/]+\.(?:h|cpp)):\d+)");
  static const std::regex kHash(R"(\b[0-9a-f]{32}\b)");  // of files that name the commit
  const std::string outcome = std::regex_replace(outcome_of_step(message.steps.back()), kPlace, "$1:*");
  return std::regex_replace(outcome, kHash, "HASH");
}

}  // namespace megalith::test
