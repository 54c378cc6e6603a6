// Shared code of the tests of this folder.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/chat/chat_template.h"
#include "core/chat/jinja_text.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/support/test_folder.h"

namespace megalith {

inline const std::string kTests = MEGALITH_SOURCE_DIR "/tests/";

inline jinja::Value json(const std::string& text) { return jinja::parse_json(text, "test"); }

inline const jinja::Dict& golden() {
  static const jinja::Value file = json(read_bytes(kTests + "golden/chat/golden.json"));
  return file.as_dict();
}

inline const std::vector<jinja::Value>& golden_list(std::string_view key) {
  return golden().find(key)->as_list().items;
}

inline ChatTemplate chat_template(const std::string& text, const std::string& special = "{}",
                                  ChatOptions options = {}) {
  return {jinja::Template("t", text), json(special).as_dict(), std::move(options)};
}

// The parts of a text that are trained.
inline std::vector<std::string> trained_parts(const LabelledText& labelled) {
  std::vector<std::string> parts;
  for (const jinja::Range& range : labelled.trained)
    parts.push_back(labelled.text.substr(range.begin, range.end - range.begin));
  return parts;
}

}  // namespace megalith
