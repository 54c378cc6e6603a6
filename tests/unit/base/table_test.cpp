#include "core/base/text/table.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Table, IsPrintedInColumns) {
  Table table{.title = "title",
              .columns = {{.width = 4, .is_text = true, .head = "name"}, {.width = 5, .head = "n"}, {.is_text = true}}};
  table.add({"a", "1", "text"});
  table.add({"bb", "12345678", "x"}, ", a note");
  table.add({"c"}, " only a note");
  table.add({"dd"});
  table.add({}, "a line");
  EXPECT_EQ(to_text(table),
            "title\n  a        1 text\n  bb   12345678 x, a note\n  c    only a note\n  dd\n  a line\n");
  table.prints_heads = true;
  table.rows.clear();
  EXPECT_EQ(to_text(table), "title\n  name     n \n");
  EXPECT_EQ(to_text(Table{}), "");
}

}  // namespace
}  // namespace megalith
