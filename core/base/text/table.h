// Table for terminals and pages.
#pragma once

#include <string>
#include <vector>

namespace megalith {

struct Table {
  // `width` in print; 0: unpadded. Text is left-aligned, numbers are right-aligned.
  struct Column {
    int width = 0;
    bool is_text = false;
    std::string head = {};
  };
  struct Row {
    std::vector<std::string> cells;
    std::string note = {};  // follows the last cell directly
  };
  std::string title = {};
  std::vector<Column> columns = {};
  std::vector<Row> rows = {};
  bool prints_heads = false;  // pages always show heads

  void add(std::vector<std::string> cells, std::string note = "") {
    rows.push_back({std::move(cells), std::move(note)});
  }
};

// Formats the title and one line per row, indented by two.
std::string to_text(const Table& table);
std::string to_text(const std::vector<Table>& tables);

}  // namespace megalith
