// Templates against Hugging Face transformers, of tests/golden/chat, and their limits and messages.
#include "core/chat/jinja.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/chat/jinja_lexer.h"
#include "core/chat/jinja_text.h"
#include "tests/unit/chat/chat_files.h"

namespace megalith::jinja {
namespace {

std::string render(const std::string& text, const Dict& variables = {}) {
  return Template("t", text).render(variables).text;
}

std::string refused(const std::string& text, const Dict& variables = {}, const Limits& limits = {}) {
  return error_of(ExitCode::kFormat, [&] { Template("t", text).render(variables, {}, limits); });
}

// Compares with [text, ranges], or null for an error.
void expect_golden(const std::string& text, const Dict& variables, const Value& wanted, const std::string& name) {
  try {
    const Rendered rendered = Template("t", text).render(variables);
    ASSERT_TRUE(wanted.is(Value::Kind::kList)) << name << ": an error of the library, here: " << rendered.text;
    EXPECT_EQ(rendered.text, wanted.as_list().items[0].as_text()) << name;
    std::vector<Range> ranges;
    for (const Value& pair : wanted.as_list().items[1].as_list().items) {
      const std::vector<Value>& ends = pair.as_list().items;
      ranges.push_back(
          {static_cast<std::size_t>(ends[0].as_integer()), static_cast<std::size_t>(ends[1].as_integer())});
    }
    EXPECT_EQ(rendered.generated, ranges) << name;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFormat) << name;
    EXPECT_TRUE(wanted.is(Value::Kind::kNone)) << name << ": " << error.what();
  }
}

TEST(Jinja, SmallTemplatesAreTheLibrarys) {
  for (const Value& small : golden_list("small")) {
    const std::vector<Value>& pair = small.as_list().items;
    expect_golden(pair[0].as_text(), golden().find("variables")->as_dict(), pair[1], pair[0].as_text());
  }
}

TEST(Jinja, ChatTemplatesAreTheLibrarys) {
  const Dict& conversations = golden().find("conversations")->as_dict();
  std::size_t cases = 0;
  for (const Value& entry : golden_list("templates")) {
    const std::vector<Value>& fields = entry.as_list().items;
    Dict variables = golden().find("special")->as_dict();
    const Value& options = golden_list("options")[static_cast<std::size_t>(fields[4].as_integer())];
    for (const auto& [name, value] : options.as_dict().members) variables.set(name, value);
    variables.set("messages", *conversations.find(fields[1].as_text()));
    variables.set("tools", fields[2].as_bool() ? *golden().find("tools") : Value::none());
    variables.set("documents", Value::none());
    variables.set("add_generation_prompt", fields[3]);
    expect_golden(read_bytes(kTests + "chat/templates/" + fields[0].as_text()), variables, fields[5],
                  fmt::format("{}, {}, tools {}, prompt {}, options {}", fields[0].as_text(), fields[1].as_text(),
                              fields[2].as_bool(), fields[3].as_bool(), fields[4].as_integer()));
    ++cases;
  }
  EXPECT_GT(cases, 500u);
}

TEST(Jinja, ErrorsHaveAPlaceAndARemedy) {
  EXPECT_EQ(refused("a\n  {% include 'x' %}"),
            "t:2:3: expected the part of Jinja that chat templates use, got the block 'include'; write the template "
            "without it");
  EXPECT_EQ(refused("é {{ x | shuffle }}"),
            "t:1:10: got the filter 'shuffle', which is not supported; write the template without it");
  EXPECT_EQ(refused("{{ x is prime }}"),
            "t:1:9: got the test 'prime', which is not supported; write the template without it");
  EXPECT_EQ(refused("{{ 'x'.zfill(3) }}"),
            "t:1:7: got the method 'str.zfill', which is not supported; write the template without it");
  EXPECT_EQ(refused("{% for m in messages %}{% endfor %}\n{{ messages.role.name }}"),
            "t:2:12: got 'role' of 'messages', which is undefined; correct the template or the conversation");
  EXPECT_EQ(refused("{{ raise_exception('turns\\nalternate') }}"),
            "t:1:19: got an error of the template: turns\\nalternate; correct the conversation");
  EXPECT_EQ(refused("{% if x %}\n{{ 1 }}"),
            "t:1:1: expected an endif of the block, got the end of the template; correct the template");
  EXPECT_THAT(refused("{{ 'é' | upper }}"), HasSubstr("got a change of case of text outside ASCII"));
  EXPECT_THAT(refused("{% set x = [1] | map('string') %}{{ x | list }}{{ x | list }}"), HasSubstr("append '| list'"));
  EXPECT_THAT(refused("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}{{ f() }}"),
              HasSubstr("{% generation %} inside a macro or a set block"));
  EXPECT_THAT(refused("{% generation %}{% generation %}{% endgeneration %}{% endgeneration %}"),
              HasSubstr("inside another"));
  EXPECT_THAT(refused("{{ 9223372036854775807 + 1 }}"), HasSubstr("got an integer of more than 64 bits"));
  EXPECT_THAT(refused("{{ joiner() }}"), HasSubstr("'joiner', which is not supported"));
  EXPECT_THAT(refused("{{ strftime_now('%Q') }}"), HasSubstr("strftime_now's %Q"));
}

TEST(Jinja, BadTemplatesAreRejected) {
  EXPECT_THAT(refused(std::string(kMaxTemplateBytes + 1, ' ')), HasSubstr("a template of at most 262144 bytes"));
  EXPECT_THAT(refused("\xff"), HasSubstr("expected a template in UTF-8"));
  for (const char* text : {"{{ a.1b }}",
                           "{{ [1, }}",
                           "{{ (1 }}",
                           "{{ {1: 2 }}",
                           "{{ 1) }}",
                           "{{ 'a\\x1' }}",
                           "{{ '\\ud800' }}",
                           "{{ a! }}",
                           "{{ 007 }}",
                           "{{ 99999999999999999999 }}",
                           "{{ f(a=1, 2) }}",
                           "{{ f(a=1, a=2) }}",
                           "{{ f(*a) }}",
                           "{{ a[1, 2] }}",
                           "{{ a[] }}",
                           "{{ x is defined is defined }}",
                           "{% set ns.a.b = 1 %}",
                           "{% for (a, (b, c)) in x %}{% endfor %}",
                           "{% macro f(a=1, b) %}{% endmacro %}",
                           "{% for x in y %}{% macro f() %}{% endmacro %}{% endfor %}",
                           "{% call f() %}{% endcall %}",
                           "{% filter upper %}{% endfilter %}",
                           "{% continue %}",
                           "{{ é }}",
                           "{% raw %}",
                           "{% if a %}{% else %}{% elif b %}{% endif %}",
                           "{{ not }}",
                           "{{ a if }}",
                           "{{ {'a': 1}['a' }}"}) {
    EXPECT_THAT(refused(text), StartsWith("t:1:")) << text;
  }
}

TEST(Jinja, DifferencesFromTheLibraryAreErrors) {
  for (const char* text : {"{{ range(3) }}", "{{ range }}", "{{ {}.items() }}", "{{ [1]|map('string') }}",
                           "{{ {none: 2} }}", "{{ 'a' is sameas 'a' }}", "{{ ('b' | safe).strip() }}",
                           "{{ '%s' % 'a' }}", "{{ '1'|int(0, 2) }}", "{{ ''.__class__ }}"}) {
    EXPECT_THAT(refused(text), StartsWith("t:1:")) << text;
  }
}

TEST(Jinja, HostileTemplatesEnd) {
  const Limits small{.output_bytes = 1000, .work = 1 << 20, .depth = 200};
  const auto ends = [&](const std::string& text, const std::string& problem) {
    EXPECT_THAT(refused(text, {}, small), HasSubstr(problem)) << text.substr(0, 100);
  };
  ends("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more work");
  ends("{% for a in range(2000) %}x{% endfor %}", "more than 1000 bytes of text");
  ends("{{ 'a' * 1000000000 }}", "more work");
  ends("{{ [1] * 1000000000 }}", "more work");
  ends("{{ [1] * 9223372036854775807 }}", "64 bits");
  ends("{% set ns = namespace(s='a') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "more work");
  ends("{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
       "a value of more than 268435456 bytes");
  ends("{% set ns = namespace(l=1) %}{% for a in range(199) %}{% set ns.l = [ns.l] %}{% endfor %}",
       "a value of more than 100 levels");
  ends(
      "{% set ns = namespace(l=1) %}{% for a in range(199) %}{% for b in [ns.l] %}{% set ns.l = loop %}{% endfor %}"
      "{% endfor %}",
      "a value of more than 100 levels");
  ends("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "macros that call each other without end");
  ends("{{ '" + std::string(2000, 'a') + "' | replace('a', '" + std::string(2000, 'b') + "') }}", "more work");
  ends("{{ '" + std::string(2000, '\n') + "' | indent(1000) }}", "more work");
  ends("{{ 'a' | indent(100000) }}", "an indentation of 100000");
  ends("{{ range(100001) }}", "a range of more than 100000");
}

TEST(Jinja, DeepTemplatesAreRejected) {
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  EXPECT_EQ(render("{{ " + repeat("(", 40) + "1" + repeat(")", 40) + " }}"), "1");
  EXPECT_EQ(render("{{ 0" + repeat(" + 1", 300) + " }}"), "300");
  EXPECT_EQ(render("{{ ''" + repeat(" ~ 'a'", 3000) + " }}"), std::string(3000, 'a'));
  for (const std::string& deep :
       {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
        "{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}", "{{ " + repeat("not ", 5000) + "1 }}",
        "{{ " + repeat("-", 5000) + "1 }}", repeat("{% if a %}", 5000), "{{ 1" + repeat(" + 1", 5000) + " }}",
        "{{ a" + repeat(".a", 5000) + " }}", "{{ a" + repeat("|list", 5000) + " }}",
        "{{ 1" + repeat(" if 1 else 1", 5000) + " }}"}) {
    EXPECT_THAT(refused(deep), AnyOf(HasSubstr("at most 100 levels"), HasSubstr("at most 400 operations")))
        << deep.substr(0, 30);
  }
}

TEST(Jinja, NamespacesMayHoldThemselves) {
  EXPECT_EQ(render("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% set a.a = [a] %}"
                   "{{ a.b.a == a }}{{ a == b }}"),
            "TrueFalse");
}

TEST(Jinja, ResultsDependOnTheDateThatIsGiven) {
  const Template now("t", "{{ strftime_now('%Y-%m-%d %a %j %I %p %-m %e') }}");
  EXPECT_EQ(now.render({}).text, "2024-07-26 Fri 208 12 AM 7 26");
  const Date date{.year = 2025, .month = 3, .day = 1, .hour = 13};
  EXPECT_EQ(now.render({}, date).text, "2025-03-01 Sat 060 01 PM 3  1");
  EXPECT_EQ(Template("t", "{{ strftime_now('%w %F %T %D') }}").render({}, date).text, "6 2025-03-01 13:00:00 03/01/25");
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { now.render({}, {.year = 2025, .month = 13}); }),
              HasSubstr("a date outside the calendar"));
}

TEST(Jinja, JsonIsStrict) {
  EXPECT_EQ(to_json(parse_json(R"({"b": [1, 2.0, null, true, "x"], "a": {}})", "j"), {}),
            R"({"b": [1, 2.0, null, true, "x"], "a": {}})");
  const auto refuse = [](const std::string& text) {
    return error_of(ExitCode::kFormat, [&] { parse_json(text, "j:3"); });
  };
  EXPECT_THAT(refuse(R"({"a": 1, "a": 2})"), HasSubstr("j:3: expected each name once, got 'a' twice"));
  EXPECT_THAT(refuse("18446744073709551615"), HasSubstr("integers of 64 bits"));
  EXPECT_THAT(refuse("99999999999999999999999"), HasSubstr("integers of 64 bits"));
  EXPECT_THAT(refuse("{"), HasSubstr("expected UTF-8 JSON, got something else at byte"));
  EXPECT_THAT(refuse(std::string("1\0", 2)), HasSubstr("a NUL byte"));
  EXPECT_THAT(refuse(std::string((64 << 20) + 1, ' ')), HasSubstr("at most 67108864 bytes"));
  EXPECT_THAT(refuse(std::string(33, '[')), HasSubstr("at most 32 levels"));
}

}  // namespace
}  // namespace megalith::jinja
