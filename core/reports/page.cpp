#include "core/reports/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/output_file.h"

namespace megalith {

extern const char* const kPageTemplate;  // content of page.html, from CMakeLists.txt

std::string page_of(const nlohmann::ordered_json& data) {
  constexpr std::string_view kMarker = "@DATA@";
  std::string page = kPageTemplate;
  // "<" could end the script; JSON has "<" only in strings.
  std::string text = data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return page.replace(page.find(kMarker), kMarker.size(), text);
}

nlohmann::ordered_json block_of(const Table& table) {
  using Json = nlohmann::ordered_json;
  Json head = Json::array(), rows = Json::array();
  for (const Table::Column& column : table.columns) head.push_back(column.head);
  if (std::ranges::all_of(table.columns, [](const Table::Column& column) { return column.head.empty(); })) head.clear();
  for (const Table::Row& row : table.rows) {
    Json cells = row.cells;
    if (!row.note.empty()) cells.push_back(row.note);
    rows.push_back(std::move(cells));
  }
  return {{"kind", "table"}, {"title", table.title}, {"head", head}, {"rows", rows}};
}

void write_page(const std::string& path, const std::string& page, std::string_view flag) {
  const FaultScope scope("report.output");
  try {
    const std::optional<NameInfo> before = look_at_name(path);
    if (before && before->type != EntryType::kFile) {  // never replaces a device or a link (/dev/stdout)
      File file = File::create(path);
      file.write(page);
      file.close();
      return;
    }
    OutputFile out(path, "report.output");
    out.write(page);
    out.commit();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace megalith
