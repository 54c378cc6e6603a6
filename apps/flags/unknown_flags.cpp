#include "apps/flags/unknown_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text/edit_distance.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

// True for a flag; a negative number is a value.
bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
}

std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 80;
  return is_utf8(text) && text.size() <= kLongest ? text : escaped_short(text);
}

UnknownFlag explained(UnknownFlag flag, const std::vector<std::string>& own) {
  std::replace(flag.name.begin(), flag.name.end(), '_', '-');
  flag.megatrons = note_on_megatron_flag(flag.name);
  if (const std::string* nearest = likely_meant(flag.name, own))
    flag.nearest = (flag.place.empty() ? "--" : "") + *nearest;
  return flag;
}

[[noreturn]] void refuse_one(std::string_view program, const UnknownFlag& flag, const std::string& remedy) {
  const std::string name = flag.place + flag.shown;
  if (flag.is_word) refuse_usage(name + ": an argument without a flag", {.remedy = remedy});
  if (!flag.other.empty())
    refuse_usage(fmt::format("{}: a flag of {}, not of {}", name, flag.other, program), {.remedy = "remove it"});
  if (flag.megatrons && flag.megatrons->empty())
    refuse_usage(name + ": a flag of Megatron-LM that is not implemented", {.remedy = remedy});
  if (flag.megatrons)
    refuse_usage(fmt::format("{}: a flag of Megatron-LM, not of {}", name, program),
                 {.remedy = std::string(*flag.megatrons)});
  refuse_usage(flag.place.empty() ? fmt::format("{}: unknown flag of {}", name, program)
                                  : fmt::format("{}unknown key {}", flag.place, flag.shown),
               {.remedy = flag.nearest.empty() ? remedy : fmt::format("did you mean {}?", flag.nearest)});
}

std::string in_list(const UnknownFlag& flag) {
  const std::string name = flag.place + flag.shown;
  if (flag.is_word) return name + " (an argument without a flag)";
  if (!flag.other.empty()) return fmt::format("{} (a flag of {})", name, flag.other);
  if (flag.megatrons && flag.megatrons->empty()) return name + " (of Megatron-LM, not implemented)";
  if (flag.megatrons) return fmt::format("{} (of Megatron-LM; {})", name, *flag.megatrons);
  return flag.nearest.empty() ? name : fmt::format("{} (did you mean {}?)", name, flag.nearest);
}

}  // namespace

std::vector<UnknownFlag> unknown_flags(const std::vector<std::string>& words, const std::vector<std::string>& own) {
  std::vector<UnknownFlag> unknown;
  bool is_value = false;
  for (const std::string& word : words) {
    if (!is_flag(word)) {
      if (!is_value) unknown.push_back({.name = word, .shown = escaped_short(word), .is_word = true});
      continue;
    }
    is_value = true;  // the next words are its values
    const std::string written = word.substr(0, word.find('='));
    UnknownFlag flag{.name = written.substr(std::min(written.find_first_not_of('-'), written.size())),
                     .shown = shown(written)};
    if (std::none_of(unknown.begin(), unknown.end(), [&](const UnknownFlag& u) { return u.shown == flag.shown; }))
      unknown.push_back(explained(std::move(flag), own));
  }
  return unknown;
}

UnknownFlag unknown_key(const std::string& key, const std::string& place, const std::vector<std::string>& own) {
  return explained({.name = key, .shown = shown(key), .place = place}, own);
}

void refuse_unknown(std::string_view program, const std::vector<UnknownFlag>& unknown, const std::string& remedy) {
  if (unknown.size() == 1) refuse_one(program, unknown[0], remedy);
  std::string list;
  for (const UnknownFlag& flag : unknown) list += (list.empty() ? "" : ", ") + in_list(flag);
  const bool are_keys = !unknown[0].place.empty();
  refuse_usage(are_keys ? "unknown keys: " + list : fmt::format("unknown flags of {}: {}", program, list),
               {.remedy = remedy});
}

}  // namespace megalith
