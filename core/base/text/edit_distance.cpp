#include "core/base/text/edit_distance.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace megalith {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1), above(b.size() + 1), second_above(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    second_above.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], second_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

const std::string* nearest_name(std::string_view name, std::span<const std::string> names, std::size_t limit) {
  const std::string* nearest = nullptr;
  for (const std::string& candidate : names) {
    const std::size_t longer = std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    if (longer >= limit) continue;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < limit) {
      limit = distance;
      nearest = &candidate;
    }
  }
  return nearest;
}

const std::string* likely_meant(std::string_view name, std::span<const std::string> names) {
  constexpr std::size_t kLongest = 64;
  return name.size() > kLongest ? nullptr : nearest_name(name, names, name.size() / 3 + 1);
}

std::string suggestion(std::string_view name, std::span<const std::string> names, std::string fallback) {
  const std::string* nearest = likely_meant(name, names);
  return nearest == nullptr ? std::move(fallback) : "did you mean " + *nearest + "?";
}

}  // namespace megalith
