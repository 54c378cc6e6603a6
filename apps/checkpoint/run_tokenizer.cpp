#include "apps/checkpoint/run_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config/data_options.h"
#include "apps/flags/complete_options.h"
#include "core/base/files/file.h"
#include "parallel/checkpoint/manifest.h"

namespace megalith {

namespace {

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_there(const TokenizerFileField& file, const std::string& named) {
  return !named.empty() && look_at(tokenizer_file_path(file, named));
}

}  // namespace

RunTokenizer run_tokenizer(const Options& options, const LoadedCheckpoint* checkpoint) {
  RunTokenizer run;
  TokenizerOptions flags = tokenizer_options(options);
  TokenizerTexts texts;
  const std::vector<std::string> copies =
      checkpoint == nullptr ? std::vector<std::string>() : checkpoint->small_files();
  const auto take_copy = [&](std::string_view name) {
    std::string copy = fmt::format("{}/{}", checkpoint->path(), name);
    texts[std::string(name)] = {copy, checkpoint->read_small_file(std::string(name))};
    return copy;
  };
  for (const TokenizerFileField& file : tokenizer_files(flags.type)) {
    const std::string& named = flags.*file.path;
    if (!has(copies, file.name) || is_there(file, named)) continue;
    const std::string copy = take_copy(file.name);
    if (!named.empty()) run.note = fmt::format("{} {} does not exist; {} is used", file.flag, named, copy);
    flags.*file.path = "";
    for (const std::string_view other : {kTokenizerConfig, kChatTemplate}) {
      if (file.name == kTokenizerJson && has(copies, other)) take_copy(other);
    }
  }
  texts.merge(read_tokenizer_files(flags));
  run.tokenizer = make_tokenizer(flags, texts);
  for (auto& [name, text] : texts) run.files.push_back({name, std::move(text.text)});
  return run;
}

std::string& tokenizer_path(DataOptions& data, std::string_view flag) {
  if (flag == "--vocab-file") return data.vocab_file;
  return flag == "--merge-file" ? data.merge_file : data.tokenizer_model;
}

std::vector<std::string> copied_file_flags(const LoadedCheckpoint& checkpoint) {
  const std::vector<std::string> copies = checkpoint.small_files();
  std::vector<std::string> flags;
  for (const std::string_view type : tokenizer_types()) {
    for (const TokenizerFileField& file : tokenizer_files(type)) {
      if (has(copies, file.name)) flags.emplace_back(file.flag.substr(2));  // without leading dashes
    }
  }
  return flags;
}

void take_copied_files(DataOptions& data, const LoadedCheckpoint& checkpoint) {
  for (const std::string& flag : copied_file_flags(checkpoint)) tokenizer_path(data, "--" + flag).clear();
}

void add_small_files(const LoadedCheckpoint& checkpoint, std::vector<SmallFile>& files) {
  for (const std::string& name : checkpoint.small_files()) {
    const bool is_there = std::ranges::any_of(files, [&](const SmallFile& file) { return file.name == name; });
    if (!is_there && files.size() < kMaxSmallFiles) files.push_back({name, checkpoint.read_small_file(name)});
  }
}

}  // namespace megalith
