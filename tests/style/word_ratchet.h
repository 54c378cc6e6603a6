// Words that a reader of the project stumbles over, counted by folder: their numbers may only fall. The list of words
// in word_ratchet.cpp is the only list; tests/style/word_ratchet.txt holds the maxima.
//
// Only prose counts (prose.h). Identifiers, paths, flags, inline and fenced code, and quotations are exempt.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megalith::style {

struct WordPlace {
  std::string word;  // entry of the list that it belongs to
  int line = 0;
};
// Finds the words of the list in a file, in the order of the text; nothing where the file's kind is not counted.
std::vector<WordPlace> find_words(const std::string& path, const std::string& text);

// Counts by folder, then by word. Each top-level folder and each file of the root is a folder of its files.
using WordCounts = std::map<std::string, std::map<std::string, int>>;
WordCounts count_words(const std::map<std::string, std::string>& texts);

// Folders whose maxima are always zero: README.md and docs.
bool must_be_free_of_words(const std::string& folder);

// Reads and writes the table of maxima. The text begins with a line that says how it is made.
WordCounts read_word_table(const std::string& table);
std::string write_word_table(const WordCounts& maxima);

// Lowers maxima to the counts of today and never raises one. Without maxima, those of today are the first.
WordCounts lowered_maxima(const WordCounts& maxima, const WordCounts& today);

// Reports each word above its maximum in one line; the places are listed where the maximum is zero.
std::vector<std::string> check_words(const std::map<std::string, std::string>& texts, const WordCounts& maxima);

// Lists the places in a folder, "docs/index.md:3: behind".
std::vector<std::string> list_words(const std::map<std::string, std::string>& texts, const std::string& folder);

}  // namespace megalith::style
