// Chat templates. The first byte selects a template, which renders a fixed conversation, or a JSON line with a value.
#include "core/chat/jinja.h"
#include "core/chat/jinja_text.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace megalith;

constexpr std::string_view kVariables = R"({"messages": [{"role": "system", "content": "Be brief."},
  {"role": "user", "content": "Hi <think>é</think>\n"}, {"role": "assistant", "content": null, "tool_calls": [
  {"id": "a", "function": {"name": "f", "arguments": {"x": [1, 2.5, true, null]}}}]}, {"role": "tool", "content": "3"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

void render(std::string_view text) {
  static const jinja::Value variables = jinja::parse_json(kVariables, "variables");
  constexpr jinja::Limits kLimits{.output_bytes = 1 << 16, .work = 1 << 19, .depth = 300};
  const jinja::Template chat("template", text);
  const jinja::Rendered first = chat.render(variables.as_dict(), {}, kLimits);
  const jinja::Rendered second = chat.render(variables.as_dict(), {}, kLimits);
  if (first.text != second.text || first.generated != second.generated) fuzz::defect("another text the second time");
  std::size_t end = 0;
  for (const jinja::Range& range : first.generated) {
    if (range.begin < end || range.end < range.begin || range.end > first.text.size()) fuzz::defect("a bad range");
    end = range.end;
  }
}

void print(std::string_view text) {
  const std::string json = jinja::to_json(jinja::parse_json(text, "line"), {});
  if (jinja::to_json(jinja::parse_json(json, "line, again"), {}) != json) fuzz::defect("JSON that changes: " + json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool is_json = input.byte() % 8 == 7;
  fuzz::expect_result_or_error([&] { is_json ? print(input.rest()) : render(input.rest()); });
  return 0;
}
