// Shape of the Markdown pages: length of README and of each page of docs, columns, and links that lead somewhere.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace megalith::style {

inline constexpr int kMaxLinesOfReadme = 150;
inline constexpr int kMaxWordsOfReadme = 1500;
inline constexpr int kMaxLinesOfPage = 249;
inline constexpr int kMaxColumnsOfPage = 120;  // tables too; pages generated from tables of the program are exempt

// Anchors of a page by GitHub's rule, "how-it-works" for "## How it works"; those of equal headings are numbered.
std::set<std::string> anchors_of(const std::string& page);

// Reports pages that are too long or too wide, and relative links of any page to a file or heading that is not there.
// `pages` are all Markdown files by path; `exists` says whether a path of the repository is there.
std::vector<std::string> check_pages(const std::map<std::string, std::string>& pages,
                                     const std::function<bool(const std::string&)>& exists);

// Reports pages of docs that the `nav` of mkdocs.yml lacks, and entries without a page.
std::vector<std::string> check_nav(const std::map<std::string, std::string>& pages, const std::string& mkdocs);

}  // namespace megalith::style
