#include "tests/style/word_ratchet.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iomanip>
#include <sstream>
#include <string_view>

#include "tests/style/prose.h"

namespace megalith::style {
namespace {

constexpr const char* kTable = "tests/style/word_ratchet.txt";

struct Word {
  std::string_view name;                    // with _ for a space, as in the table
  std::array<std::string_view, 4> forms{};  // unused ones are empty
};
// docs/style.md has what to write instead. `Of` counts where a sentence opens with it.
constexpr Word kWords[] = {
    {"behind", {"behind"}},
    {"beside", {"beside"}},
    {"apart", {"apart"}},
    {"so_many", {"so many"}},
    {"told", {"told"}},
    {"wants", {"wants"}},
    {"mend", {"mend", "mends", "mended", "mending"}},
    {"goes_on", {"goes on"}},
    {"anew", {"anew"}},
    {"share_out", {"share out", "shares out", "shared out", "sharing out"}},
    {"alike", {"alike"}},
    {"in_vain", {"in vain"}},
    {"of_its_own", {"of its own"}},
};
constexpr const char* kOf = "Of";

// The files that hold the words as data.
bool holds_the_list(const std::string& path) { return path.starts_with("tests/style/word_ratchet"); }

bool of_token(char c) { return is_word_char(c) || (static_cast<unsigned char>(c) & 0x80) != 0; }

struct ProseWord {
  std::size_t begin = 0, end = 0;
  std::string lower;
};

std::vector<ProseWord> words_in(const std::string& prose) {
  std::vector<ProseWord> tokens;
  for (std::size_t i = 0; i < prose.size(); ++i) {
    if (!of_token(prose[i])) continue;
    ProseWord token{.begin = i};
    for (; i < prose.size() && of_token(prose[i]); ++i)
      token.lower += static_cast<char>(std::tolower(static_cast<unsigned char>(prose[i])));
    token.end = i;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Whether the text from `begin` to `end` is a part of an identifier, a path or a flag: a/behind.h, --told, x.wants().
bool is_part_of_name(const std::string& prose, std::size_t begin, std::size_t end) {
  const auto at = [&](std::size_t i) { return i < prose.size() ? prose[i] : ' '; };
  const char before = begin > 0 ? prose[begin - 1] : ' ', after = at(end);
  if (std::string_view("/\\@$%-.").find(before) != std::string_view::npos) return true;
  if (before == ':' && begin > 1 && prose[begin - 2] == ':') return true;
  if (std::string_view("/(=[-").find(after) != std::string_view::npos) return true;
  return (after == '.' && of_token(at(end + 1))) || (after == ':' && at(end + 1) == ':');
}

// The number of tokens from `first` on that make up `form`; 0 where they do not.
std::size_t length_of_match(const std::string& prose, const std::vector<ProseWord>& tokens, std::size_t first,
                            std::string_view form) {
  std::size_t i = first;
  for (; !form.empty() && i < tokens.size(); ++i) {
    const std::size_t length = std::min(form.find(' '), form.size());
    if (tokens[i].lower != form.substr(0, length)) return 0;
    form.remove_prefix(std::min(length + 1, form.size()));
    for (std::size_t c = tokens[i].end; !form.empty() && i + 1 < tokens.size() && c < tokens[i + 1].begin; ++c)
      if (!is_blank(prose[c])) return 0;
  }
  return form.empty() ? i - first : 0;
}

bool opens_sentence(const std::string& prose, std::size_t at) {
  int lines = 0;
  while (at > 0) {
    const char c = prose[--at];
    lines += c == '\n' ? 1 : 0;
    if (lines > 1 || c == kBreak || std::string_view(".!?:;|#").find(c) != std::string_view::npos) return true;
    const bool is_list_mark = (c == '-' || c == '*') && (at == 0 || is_blank(prose[at - 1]));
    if (is_list_mark && is_blank(prose[at + 1])) return true;
    if (!is_blank(c) && std::string_view("*_()[]").find(c) == std::string_view::npos) return false;
  }
  return true;
}

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

int count_in(const WordCounts& counts, const std::string& folder, const std::string& word) {
  const auto row = counts.find(folder);
  if (row == counts.end()) return 0;
  const auto cell = row->second.find(word);
  return cell == row->second.end() ? 0 : cell->second;
}

std::vector<std::string> columns() {
  std::vector<std::string> names;
  for (const Word& word : kWords) names.emplace_back(word.name);
  names.emplace_back(kOf);
  return names;
}

}  // namespace

std::vector<WordPlace> find_words(const std::string& path, const std::string& text) {
  const std::optional<Language> language = language_of(path);
  if (!language.has_value() || holds_the_list(path)) return {};
  const std::string prose = prose_of(text, *language);
  const std::vector<ProseWord> tokens = words_in(prose);
  std::vector<WordPlace> places;
  std::size_t counted = 0;
  int line = 1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto add = [&](std::string_view word) {
      for (; counted < tokens[i].begin; ++counted) line += prose[counted] == '\n' ? 1 : 0;
      places.push_back({std::string(word), line});
    };
    for (const Word& word : kWords) {
      const bool found = std::ranges::any_of(word.forms, [&](std::string_view form) {
        const std::size_t length = form.empty() ? 0 : length_of_match(prose, tokens, i, form);
        return length > 0 && !is_part_of_name(prose, tokens[i].begin, tokens[i + length - 1].end);
      });
      if (found) add(word.name);
    }
    if (tokens[i].lower == "of" && prose[tokens[i].begin] == 'O' && prose[tokens[i].begin + 1] == 'f' &&
        opens_sentence(prose, tokens[i].begin))
      add(kOf);
  }
  return places;
}

WordCounts count_words(const std::map<std::string, std::string>& texts) {
  WordCounts counts;
  for (const auto& [path, text] : texts) {
    if (!language_of(path).has_value()) continue;
    auto& row = counts[folder_of(path)];
    for (const WordPlace& place : find_words(path, text)) ++row[place.word];
  }
  return counts;
}

bool must_be_free_of_words(const std::string& folder) { return folder == "README.md" || folder == "docs"; }

WordCounts read_word_table(const std::string& table) {
  WordCounts maxima;
  std::istringstream lines(table);
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream cells(line);
    std::string folder, cell;
    cells >> folder;
    if (names.empty()) {
      while (cells >> cell) names.push_back(cell);
      continue;
    }
    auto& row = maxima[folder];
    int most = 0;
    for (const std::string& name : names)
      if (cells >> most) row[name] = most;
  }
  return maxima;
}

std::string write_word_table(const WordCounts& maxima) {
  std::ostringstream out;
  out << "# Maxima of tests/style/word_ratchet.cpp, lowered to the counts of today by\n"
         "#   MEGALITH_UPDATE_RATCHET=1 check_tree REPOSITORY\n";
  out << std::left << std::setw(24) << "folder" << std::right;
  for (const std::string& name : columns())
    out << ' ' << std::setw(static_cast<int>(std::max<std::size_t>(name.size(), 4))) << name;
  out << '\n';
  for (const auto& [folder, row] : maxima) {
    out << std::left << std::setw(24) << folder << std::right;
    for (const std::string& name : columns())
      out << ' ' << std::setw(static_cast<int>(std::max<std::size_t>(name.size(), 4)))
          << count_in(maxima, folder, name);
    out << '\n';
  }
  return out.str();
}

WordCounts lowered_maxima(const WordCounts& maxima, const WordCounts& today) {
  WordCounts lowered;
  for (const auto& [folder, row] : today) {
    for (const std::string& word : columns()) {
      const int count = count_in(today, folder, word);
      const int most = maxima.empty() ? count : std::min(count, count_in(maxima, folder, word));
      lowered[folder][word] = must_be_free_of_words(folder) ? 0 : most;
    }
  }
  return lowered;
}

std::vector<std::string> check_words(const std::map<std::string, std::string>& texts, const WordCounts& maxima) {
  std::vector<std::string> breaches;
  for (const auto& [folder, row] : count_words(texts)) {
    const auto most = [&maxima, &in = folder](const std::string& word) {
      return must_be_free_of_words(in) ? 0 : count_in(maxima, in, word);
    };
    for (const auto& [word, count] : row) {
      if (count > most(word) && most(word) > 0)
        breaches.push_back(folder + ": \"" + word + "\" " + std::to_string(count) + " times in prose, at most " +
                           std::to_string(most(word)) + " (" + kTable + "; list: check_tree REPOSITORY " + folder +
                           ")");
    }
    for (const auto& [path, text] : texts) {
      if (folder_of(path) != folder) continue;
      for (const WordPlace& place : find_words(path, text))
        if (most(place.word) == 0)
          breaches.push_back(path + ":" + std::to_string(place.line) + ": \"" + place.word + "\"; see docs/style.md");
    }
  }
  return breaches;
}

std::vector<std::string> list_words(const std::map<std::string, std::string>& texts, const std::string& folder) {
  std::vector<std::string> places;
  for (const auto& [path, text] : texts) {
    if (folder_of(path) != folder && path != folder) continue;
    for (const WordPlace& place : find_words(path, text))
      places.push_back(path + ":" + std::to_string(place.line) + ": " + place.word);
  }
  return places;
}

}  // namespace megalith::style
