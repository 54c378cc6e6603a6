// A table that programs print and pages show.
#pragma once

#include <string>
#include <vector>

namespace megalith {

struct Table {
  // `width` in print, 0: as long as it is; texts are at the left, numbers at the right.
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
  bool prints_heads = false;  // pages show them always

  void add(std::vector<std::string> cells, std::string note = "") {
    rows.push_back({std::move(cells), std::move(note)});
  }
};

// The title, then a line a row, indented by two.
std::string printed(const Table& table);
std::string printed(const std::vector<Table>& tables);

}  // namespace megalith
