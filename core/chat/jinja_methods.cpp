// Methods of Python's str, dict and list, and how arguments reach parameters.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/base/text/parse_number.h"
#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

namespace {

// The characters to strip: none for None or no argument.
std::optional<std::string_view> strip_argument(const Arguments& arguments) {
  const Value* characters = arguments.bind({"chars"})[0];
  if (characters == nullptr || characters->is(Value::Kind::kNone)) return std::nullopt;
  return text_argument(*characters, "the characters to strip");
}

template <std::string_view (*strip_text)(std::string_view, std::optional<std::string_view>)>
Value strip_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::optional<std::string_view> characters = strip_argument(arguments);
  interpreter.charge(self.as_text().size() * (1 + (characters ? characters->size() : 0)));
  return Value::text(std::string(strip_text(self.as_text(), characters)));
}

template <std::vector<std::string_view> (*split_text)(std::string_view, std::optional<std::string_view>, std::int64_t)>
Value split_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::vector<const Value*> bound = arguments.bind({"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (bound[0] != nullptr && !bound[0]->is(Value::Kind::kNone)) {
    separator = text_argument(*bound[0], "the separator");
    if (separator->empty()) throw Problem("a split at an empty separator");
    interpreter.charge_search(self.as_text(), *separator);
  }
  interpreter.charge(self.as_text().size() * 16);
  return interpreter.make_texts(split_text(self.as_text(), separator, integer_argument(bound[1], -1, "maxsplit")));
}

template <std::string (*change_case)(std::string_view)>
Value case_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  arguments.bind({});
  interpreter.charge(self.as_text().size());
  return Value::text(change_case(self.as_text()));
}

// startswith and endswith accept a text or a tuple of texts.
template <bool (*matches)(std::string_view, std::string_view)>
Value affix_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* affix = arguments.bind({"affix"})[0];
  if (affix == nullptr) throw Problem("a call without the text to look for");
  if (affix->is_text()) return Value::boolean(matches(self.as_text(), affix->as_text()));
  if (!affix->is(Value::Kind::kList) || affix->as_list().kind != ListKind::kTuple) {
    throw Problem("a search for " + affix->type_name());
  }
  const std::vector<Value> affixes = interpreter.items(*affix);
  return Value::boolean(std::ranges::any_of(
      affixes, [&](const Value& one) { return matches(self.as_text(), text_argument(one, "the text to look for")); }));
}

bool begins_with(std::string_view text, std::string_view affix) { return text.starts_with(affix); }
bool finishes_with(std::string_view text, std::string_view affix) { return text.ends_with(affix); }

Value replace_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return interpreter.filter("replace", self, arguments);
}

Value split_lines_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* keeps = arguments.bind({"keepends"})[0];
  interpreter.charge(self.as_text().size() * 16);
  return interpreter.make_texts(split_lines(self.as_text(), keeps != nullptr && keeps->is_true()));
}

Value join_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* list = arguments.bind({"iterable"})[0];
  if (list == nullptr) throw Problem("join without texts");
  std::string text;
  bool is_first = true;
  for (const Value& item : interpreter.items(*list)) {
    const std::string& part = text_argument(item, "a text to join");
    interpreter.charge(self.as_text().size() + part.size());
    if (!std::exchange(is_first, false)) text += self.as_text();
    text += part;
  }
  return Value::text(std::move(text));
}

// Position of a found byte in characters.
template <std::size_t (*find_byte)(std::string_view, std::string_view)>
std::int64_t found_at(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.bind({"sub"})[0];
  if (wanted == nullptr) throw Problem("a search without a text");
  const std::string_view text = self.as_text(), part = text_argument(*wanted, "the text to find");
  interpreter.charge_search(text, part);
  const std::size_t byte = find_byte(text, part);
  return byte == text.npos ? -1 : static_cast<std::int64_t>(count_characters(text.substr(0, byte)));
}

std::size_t first_byte(std::string_view text, std::string_view wanted) { return text.find(wanted); }
std::size_t last_byte(std::string_view text, std::string_view wanted) { return text.rfind(wanted); }

template <std::size_t (*find_byte)(std::string_view, std::string_view)>
Value find_text_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return Value::integer(found_at<find_byte>(interpreter, self, arguments));
}

Value index_of_text(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::int64_t at = found_at<first_byte>(interpreter, self, arguments);
  if (at < 0) throw Problem("index of a text that is not there", "use find");
  return Value::integer(at);
}

Value count_text(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.bind({"sub"})[0];
  if (wanted == nullptr) throw Problem("count without a text");
  const std::string_view text = self.as_text(), part = text_argument(*wanted, "the text to count");
  interpreter.charge_search(text, part);
  if (part.empty()) return Value::integer(static_cast<std::int64_t>(count_characters(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return Value::integer(count);
}

Value without_prefix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Value* prefix = arguments.bind({"prefix"})[0];
  if (prefix == nullptr) throw Problem("removeprefix without a text");
  std::string_view text = self.as_text(), affix = text_argument(*prefix, "the prefix");
  if (text.starts_with(affix)) text.remove_prefix(affix.size());
  return Value::text(std::string(text));
}

Value without_suffix(Interpreter&, const Value& self, const Arguments& arguments) {
  const Value* suffix = arguments.bind({"suffix"})[0];
  if (suffix == nullptr) throw Problem("removesuffix without a text");
  std::string_view text = self.as_text(), affix = text_argument(*suffix, "the suffix");
  if (text.ends_with(affix)) text.remove_suffix(affix.size());
  return Value::text(std::string(text));
}

// Field of a format: {} is the next argument, {1} and {name} are arguments.
const Value& format_field(std::string_view field, const Arguments& arguments, std::size_t& next) {
  if (field.find_first_of(":!.[") != field.npos) throw Problem("a format of str.format", "use fields such as {0}");
  const std::optional<std::size_t> number = field.empty() ? next++ : parse_number<std::size_t>(field);
  if (number) {
    if (*number >= arguments.positional.size()) throw Problem("too few arguments of str.format");
    return arguments.positional[*number];
  }
  for (const auto& [name, value] : arguments.named) {
    if (name == field) return value;
  }
  throw Problem("the field " + printable(field) + " of str.format, which has no argument");
}

Value format_text(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string_view text = self.as_text();
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == text[at]) {  // {{ and }} are brackets
      out += text[at++];
      continue;
    }
    const std::size_t end = text.find('}', at + 1);
    if (text[at] == '}' || end == text.npos) throw Problem("a single bracket in str.format", "write it twice");
    out += interpreter.text_of(format_field(text.substr(at + 1, end - at - 1), arguments, next));
    at = end;
  }
  interpreter.charge(out.size());
  return Value::text(std::move(out));
}

Value dict_items(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  arguments.bind({});
  interpreter.charge(self.as_dict().members.size() * 128);
  std::vector<Value> items;
  for (const auto& [key, value] : self.as_dict().members) items.push_back(Value::tuple({key_value(key), value}));
  return Value::view(std::move(items));
}

Value dict_keys(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  arguments.bind({});
  return Value::view(interpreter.items(self));
}

Value dict_values(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  arguments.bind({});
  interpreter.charge(self.as_dict().members.size() * sizeof(Value));
  std::vector<Value> values;
  for (const auto& member : self.as_dict().members) values.push_back(member.second);
  return Value::view(std::move(values));
}

Value dict_get(Interpreter&, const Value& self, const Arguments& arguments) {
  const std::vector<const Value*> bound = arguments.bind({"key", "default"});
  if (bound[0] == nullptr) throw Problem("get without a key");
  const Value* found = find_member(self.as_dict(), *bound[0]);
  if (found != nullptr) return *found;
  return bound[1] != nullptr ? *bound[1] : Value::none();
}

Value list_count(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.bind({"value"})[0];
  if (wanted == nullptr) throw Problem("count without a value");
  interpreter.charge(self.weight());
  return Value::integer(
      std::ranges::count_if(self.as_list().items, [&](const Value& item) { return equal(item, *wanted); }));
}

Value list_index(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value* wanted = arguments.bind({"value"})[0];
  if (wanted == nullptr) throw Problem("index without a value");
  interpreter.charge(self.weight());
  const std::vector<Value>& items = self.as_list().items;
  const auto found = std::ranges::find_if(items, [&](const Value& item) { return equal(item, *wanted); });
  if (found == items.end()) throw Problem("index of a value that is not there", "test with 'in' first");
  return Value::integer(found - items.begin());
}

Value loop_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) throw Problem("loop.cycle without values");
  const auto index = static_cast<std::size_t>(self.as_list().items[0].as_integer());
  return arguments.positional[index % arguments.positional.size()];
}

}  // namespace

Operation find_method(std::string_view name) {
  static const std::unordered_map<std::string_view, Operation> kMethods = {
      {"str.strip", strip_method<strip>},
      {"str.lstrip", strip_method<strip_left>},
      {"str.rstrip", strip_method<strip_right>},
      {"str.split", split_method<split>},
      {"str.rsplit", split_method<split_right>},
      {"str.splitlines", split_lines_method},
      {"str.startswith", affix_method<begins_with>},
      {"str.endswith", affix_method<finishes_with>},
      {"str.upper", case_method<upper>},
      {"str.lower", case_method<lower>},
      {"str.title", case_method<title>},
      {"str.capitalize", case_method<capitalize>},
      {"str.replace", replace_method},
      {"str.join", join_method},
      {"str.find", find_text_method<first_byte>},
      {"str.rfind", find_text_method<last_byte>},
      {"str.index", index_of_text},
      {"str.count", count_text},
      {"str.format", format_text},
      {"str.removeprefix", without_prefix},
      {"str.removesuffix", without_suffix},
      {"dict.items", dict_items},
      {"dict.keys", dict_keys},
      {"dict.values", dict_values},
      {"dict.get", dict_get},
      {"list.count", list_count},
      {"list.index", list_index},
      {"tuple.count", list_count},
      {"tuple.index", list_index},
      {"loop.cycle", loop_cycle},
  };
  const auto found = kMethods.find(name);
  return found == kMethods.end() ? nullptr : found->second;
}

std::vector<const Value*> Arguments::bind(std::initializer_list<std::string_view> parameters) const {
  std::vector<const Value*> bound(parameters.size(), nullptr);
  if (positional.size() > parameters.size()) {
    throw Problem(fmt::format("{} arguments, of at most {}", positional.size(), parameters.size()));
  }
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto parameter = std::ranges::find(parameters, name);
    if (parameter == parameters.end()) throw Problem(fmt::format("an argument {}, which is unknown", printable(name)));
    const Value*& place = bound[static_cast<std::size_t>(parameter - parameters.begin())];
    if (place != nullptr) throw Problem(fmt::format("the argument {} twice", name));
    place = &value;
  }
  return bound;
}

std::int64_t integer_argument(const Value* value, std::int64_t otherwise, std::string_view what) {
  if (value == nullptr) return otherwise;
  if (!value->is_integer()) throw Problem(fmt::format("{} of type {}, which is no integer", what, value->type_name()));
  return value->as_integer();
}

const std::string& text_argument(const Value& value, std::string_view what) {
  if (value.is_undefined()) throw Problem(fmt::format("{}: {}", what, value.undefined_name()));
  if (!value.is_text()) throw Problem(fmt::format("{} of type {}, which is no text", what, value.type_name()));
  return value.as_text();
}

}  // namespace megalith::jinja
