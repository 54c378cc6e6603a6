// Templates in the part of Jinja that Hugging Face chat templates use, with the results of transformers' sandboxed
// Jinja (trim_blocks, lstrip_blocks, immutable lists). Everything else is an Error kFormat with the template's line and
// column. Results depend on the template and its variables alone: there is no clock, no locale and no file.
//
// Supported: {{ }}; if, for (with if and else), set, set blocks, macro, generation, raw, break, continue; loop,
// namespace, range, dict, raise_exception, strftime_now; the filters, tests and methods of jinja_filters.cpp,
// jinja_list_filters.cpp, jinja_tests.cpp and jinja_methods.cpp. Text of the filter `safe` can be printed, joined
// and added, and has no methods. upper, lower, title and capitalize reject text outside ASCII. Integers have 64 bits.
// Keys of dictionaries are texts and integers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/chat/jinja_value.h"

namespace megalith::jinja {

struct Tree;

// Date and time that strftime_now prints.
struct Date {
  int year = 2024, month = 7, day = 26;  // the date that Llama 3's templates print without a clock
  int hour = 0, minute = 0, second = 0;
};

struct Limits {
  std::size_t output_bytes = std::size_t{64} << 20;
  std::size_t work = std::size_t{1} << 30;  // bytes made, read or compared; an operation counts as 16
  int depth = 1000;                         // of expressions, blocks and macros within each other
};

struct Range {
  std::size_t begin = 0, end = 0;  // bytes of the text
  bool operator==(const Range&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<Range> generated;  // of each {% generation %}, in order
};

class Template {
 public:
  // `name` is the file or another name for messages. At most 256 KiB.
  Template(std::string name, std::string_view text);

  const std::string& name() const;
  const std::string& text() const;  // with \n as line ends
  bool has_generation() const;      // whether the template has {% generation %}

  Rendered render(const Dict& variables, const Date& date = {}, const Limits& limits = {}) const;

 private:
  std::shared_ptr<const Tree> tree_;
};

}  // namespace megalith::jinja
