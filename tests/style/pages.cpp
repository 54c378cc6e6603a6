#include "tests/style/pages.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string_view>

#include "tests/style/prose.h"

namespace megalith::style {
namespace {

bool is_generated(const std::string& path) { return path.starts_with("docs/flags/") || path == "docs/metrics.md"; }

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Lines of a page; those of fenced code are empty.
std::vector<std::string> lines_without_fences(const std::string& text) {
  std::vector<std::string> lines = split_lines(text);
  Fences fences;
  for (std::string& line : lines)
    if (fences.hold(line)) line.clear();
  return lines;
}

int width_of(const std::string& line) {
  return static_cast<int>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));  // UTF-8
}

std::string too_much(const std::string& what, int got, const std::string& unit, int most) {
  return what + ": " + std::to_string(got) + " " + unit + ", at most " + std::to_string(most);
}

void check_shape(const std::string& path, const std::string& text, std::vector<std::string>& breaches) {
  const bool readme = path == "README.md";
  if (!readme && !path.starts_with("docs/")) return;
  const std::vector<std::string> lines = split_lines(text);
  const int count = static_cast<int>(lines.size()), most = readme ? kMaxLinesOfReadme : kMaxLinesOfPage;
  if (count > most) breaches.push_back(too_much(path, count, "lines", most));
  for (std::size_t i = 0; i < lines.size() && !is_generated(path); ++i)
    if (const int columns = width_of(lines[i]); columns > kMaxColumnsOfPage)
      breaches.push_back(too_much(path + ":" + std::to_string(i + 1), columns, "columns", kMaxColumnsOfPage));
  if (!readme) return;
  std::istringstream stream(text);
  int words = 0;
  for (std::string word; stream >> word;) ++words;
  if (words > kMaxWordsOfReadme) breaches.push_back(too_much(path, words, "words", kMaxWordsOfReadme));
}

struct Link {
  std::string target;
  int line = 0;
};

std::vector<Link> links_of(const std::string& text) {
  static const std::regex kCode("`+[^`]*`+"), kInline(R"re(\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\))re"),
      kReference(R"(^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+))"), kHtml(R"re((?:href|src|srcset)="([^"]+)")re");
  std::vector<Link> links;
  int number = 0;
  for (const std::string& line : lines_without_fences(text)) {
    ++number;
    const std::string plain = std::regex_replace(line, kCode, "");
    for (const std::regex* pattern : {&kInline, &kReference, &kHtml})
      for (std::sregex_iterator match(plain.begin(), plain.end(), *pattern), end; match != end; ++match)
        links.push_back({(*match)[1], number});
  }
  return links;
}

// A path of the repository, relative to its root; "/" begins there too.
std::string resolved(const std::string& page, const std::string& target) {
  const std::filesystem::path from = std::filesystem::path(page).parent_path();
  std::filesystem::path to = target.starts_with('/') ? std::filesystem::path(target.substr(1)) : from / target;
  std::string path = to.lexically_normal().generic_string();
  while (path.ends_with('/')) path.pop_back();
  return path;
}

void check_links(const std::string& page, const std::map<std::string, std::string>& pages,
                 const std::function<bool(const std::string&)>& exists, std::vector<std::string>& breaches) {
  for (const Link& link : links_of(pages.at(page))) {
    static const std::regex kScheme("^[a-z][a-z0-9+.-]*:.*");
    if (std::regex_match(link.target, kScheme) || link.target.starts_with("//")) continue;
    const std::size_t hash = std::min(link.target.find('#'), link.target.size());
    const std::string target = hash == 0 ? page : resolved(page, link.target.substr(0, hash));
    const std::string place = page + ":" + std::to_string(link.line) + ": ";
    if (target != page && (target.starts_with("..") || !exists(target))) {
      breaches.push_back(place + link.target + " leads to no file");
      continue;
    }
    const auto to = pages.find(target);
    if (hash == link.target.size() || to == pages.end()) continue;
    if (!anchors_of(to->second).contains(link.target.substr(hash + 1)))
      breaches.push_back(place + link.target + " leads to no heading of " + target);
  }
}

}  // namespace

std::set<std::string> anchors_of(const std::string& page) {
  static const std::regex kHeading("^ {0,3}#{1,6} +(.*?)[ #]*$"), kLink(R"(!?\[([^\]]*)\]\([^)]*\))"),
      kId(R"re(<a (?:id|name)="([^"]+)")re");
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  for (const std::string& line : lines_without_fences(page)) {
    for (std::sregex_iterator match(line.begin(), line.end(), kId), end; match != end; ++match)
      anchors.insert((*match)[1]);
    std::smatch heading;
    if (!std::regex_match(line, heading, kHeading)) continue;
    std::string anchor;
    for (const char c : std::regex_replace(heading[1].str(), kLink, "$1")) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) != 0 || c == '-' || c == '_' || byte >= 0x80)
        anchor += static_cast<char>(std::tolower(byte));
      if (c == ' ') anchor += '-';
    }
    const int earlier = seen[anchor]++;
    anchors.insert(earlier == 0 ? anchor : anchor + "-" + std::to_string(earlier));
  }
  return anchors;
}

std::vector<std::string> check_pages(const std::map<std::string, std::string>& pages,
                                     const std::function<bool(const std::string&)>& exists) {
  std::vector<std::string> breaches;
  for (const auto& [path, text] : pages) {
    check_shape(path, text, breaches);
    check_links(path, pages, exists, breaches);
  }
  return breaches;
}

std::vector<std::string> check_nav(const std::map<std::string, std::string>& pages, const std::string& mkdocs) {
  static const std::regex kEntry(R"(([\w/-]+\.md)\s*$)");
  std::vector<std::string> breaches;
  std::set<std::string> listed;
  const std::size_t nav = mkdocs.find("\nnav:");
  for (const std::string& line : split_lines(nav == std::string::npos ? "" : mkdocs.substr(nav))) {
    std::smatch entry;
    if (!std::regex_search(line, entry, kEntry)) continue;
    const std::string page = "docs/" + entry[1].str();
    if (!listed.insert(page).second) breaches.push_back("mkdocs.yml: " + page + " stands in nav twice");
    if (!pages.contains(page)) breaches.push_back("mkdocs.yml: nav lists " + page + ", which is not there");
  }
  for (const auto& [path, text] : pages)
    if (path.starts_with("docs/") && !listed.contains(path)) breaches.push_back("mkdocs.yml: nav lacks " + path);
  return breaches;
}

}  // namespace megalith::style
