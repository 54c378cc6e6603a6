#include "apps/flags/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/take_part.h"
#include "core/base/text/parse_number.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr std::string_view kInteger = "<int>", kNumber = "<number>", kText = "<text>";

// Numbers are equal in any form: 1 and 1.0.
bool is_value(std::string_view listed, std::string_view word) {
  if (listed == kInteger) return parse_number<std::int64_t>(word).has_value();
  if (listed == kNumber) return parse_number<double>(word).has_value();
  if (listed == kText) return is_utf8(word);
  const std::optional<double> one = parse_number<double>(listed), other = parse_number<double>(word);
  return listed == word || (one && other && *one == *other);
}

// X of no-X and disable-X; otherwise the name.
std::string_view without_negation(std::string_view name) {
  for (const std::string_view negation : {"no-", "disable-"})
    if (name.starts_with(negation)) return name.substr(negation.size());
  return name;
}

enum class Match { kExact, kOpposite, kBeginning };

bool matches(const MegatronFlag& flag, std::string_view name, Match match) {
  switch (match) {
    case Match::kExact: return flag.name == name;
    case Match::kOpposite:
      return flag.row->kind == MegatronKind::kTaken && flag.is_toggle() && !flag.name.ends_with('-') &&
             without_negation(flag.name) != flag.name && without_negation(flag.name) == without_negation(name);
    case Match::kBeginning: return flag.name.ends_with('-') && name.starts_with(flag.name);
  }
  return false;
}

// Flags of all rows but those of values.
const std::vector<MegatronFlag>& all_flags() {
  static const std::vector<MegatronFlag> all = [] {
    std::vector<MegatronFlag> flags;
    for (const auto& rows : {megatron_taken(), megatron_spellings(), megatron_features()}) {
      for (const MegatronRow& row : rows) {
        const std::vector<MegatronFlag> of_row = flags_of(row);
        flags.insert(flags.end(), of_row.begin(), of_row.end());
      }
    }
    return flags;
  }();
  return all;
}

}  // namespace

bool MegatronFlag::takes(const std::vector<std::string>& words) const {
  if (is_toggle()) return row->kind == MegatronKind::kTaken && words.empty();
  if (words.size() != 1) return false;
  for (std::string_view rest = values; !rest.empty();)
    if (is_value(take_part(rest, '|'), words[0])) return true;
  return false;
}

std::string MegatronFlag::expected() const {
  if (is_toggle()) return "no value";
  if (values == kInteger) return "an integer";
  if (values == kNumber) return "a number";
  if (values == kText) return "a text in UTF-8";
  std::vector<std::string_view> listed;
  for (std::string_view rest = values; !rest.empty();) listed.push_back(take_part(rest, '|'));
  return alternatives(listed);
}

std::vector<MegatronFlag> flags_of(const MegatronRow& row) {
  std::vector<MegatronFlag> flags;
  for (std::string_view rest = row.flags; !rest.empty();) {
    std::string_view values = take_part(rest, ' ');
    const std::string_view name = take_part(values, '=');
    flags.push_back({.row = &row, .name = name, .values = values});
  }
  return flags;
}

std::vector<MegatronFlag> find_megatron_flags(std::string_view name, unsigned apps) {
  std::string dashed(name);
  std::ranges::replace(dashed, '_', '-');
  std::vector<MegatronFlag> found;
  for (const Match match : {Match::kExact, Match::kOpposite, Match::kBeginning}) {
    for (const MegatronFlag& flag : all_flags())
      if ((flag.row->apps & apps) != 0 && matches(flag, dashed, match)) found.push_back(flag);
    if (!found.empty()) break;
  }
  return found;
}

const MegatronRow* megatron_feature_of(std::string_view flag, std::string_view value) {
  for (const MegatronRow& row : megatron_values()) {
    for (const MegatronFlag& each : flags_of(row))
      if (each.name == flag && each.takes({std::string(value)})) return &row;
  }
  return nullptr;
}

}  // namespace megalith
