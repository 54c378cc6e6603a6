#include "core/base/text/table.h"

#include <fmt/format.h>

namespace megalith {

namespace {

std::string to_text(const Table& table, const Table::Row& row) {
  std::string line = "  ";
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    const auto& [width, is_text, head] = table.columns.at(i);
    const bool is_end = i + 1 == row.cells.size() && row.note.empty();
    if (i > 0) line += ' ';
    line +=
        is_text ? fmt::format("{:<{}}", row.cells[i], is_end ? 0 : width) : fmt::format("{:>{}}", row.cells[i], width);
  }
  return line + row.note + "\n";
}

}  // namespace

std::string to_text(const Table& table) {
  std::string text = table.title.empty() ? "" : table.title + "\n";
  if (table.prints_heads) {
    Table::Row heads;
    for (const Table::Column& column : table.columns) heads.cells.push_back(column.head);
    text += to_text(table, heads);
  }
  for (const Table::Row& row : table.rows) text += to_text(table, row);
  return text;
}

std::string to_text(const std::vector<Table>& tables) {
  std::string text;
  for (const Table& table : tables) text += to_text(table);
  return text;
}

}  // namespace megalith
