// Filters that read or return several items.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "core/base/take_part.h"
#include "core/base/text/parse_number.h"
#include "core/chat/jinja_interpreter.h"
#include "core/chat/jinja_text.h"
#include "core/chat/python_text.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

namespace {

// Item of an item: the path is a text such as "function.name" or "0", or an integer.
Value value_at(const Value& item, const Value& path) {
  if (path.is_integer()) return item_of(item, path);
  std::string_view rest = text_argument(path, "an attribute");
  Value value = item;
  do {
    const std::string_view part = take_part(rest, '.');
    const std::optional<std::int64_t> index = parse_number<std::int64_t>(part);
    value = item_of(value, index && *index >= 0 ? Value::integer(*index) : Value::text(std::string(part)));
  } while (!rest.empty());
  return value;
}

// Text by which sorting ignores case; other values as they are.
Value sort_key(const Value& value, bool ignores_case) {
  return ignores_case && value.is_text() ? Value::text(lower(value.as_text())) : value;
}

Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest{.positional = {}, .named = arguments.named};
  if (arguments.positional.size() > count) {
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(count),
                           arguments.positional.end());
  }
  return rest;
}

Value filter_list(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  return Value::list(interpreter.items(value));
}

Value filter_items(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (value.is_undefined()) return Value::lazy({});
  if (!value.is(Value::Kind::kDict)) throw Problem("items of " + value.type_name());
  interpreter.charge(value.as_dict().members.size() * 128);
  std::vector<Value> items;
  for (const auto& [key, member] : value.as_dict().members) items.push_back(Value::tuple({key_value(key), member}));
  return Value::lazy(std::move(items));
}

Value filter_first(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (value.is_text()) return item_of(value, Value::integer(0));
  const std::vector<Value> items = items_of(value);
  return items.empty() ? Value::undefined("the first item of none") : items.front();
}

Value filter_last(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (value.is_text()) return item_of(value, Value::integer(-1));
  if (value.is(Value::Kind::kList) && value.as_list().kind == ListKind::kLazy) {
    throw Problem("the last item of a generator", "insert '| list'");
  }
  const std::vector<Value> items = items_of(value);
  return items.empty() ? Value::undefined("the last item of none") : items.back();
}

Value filter_reverse(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  arguments.bind({});
  if (value.is_text()) {
    std::vector<std::string_view> characters = characters_of(value.as_text());
    std::string text;
    for (auto at = characters.rbegin(); at != characters.rend(); ++at) text += *at;
    return Value::text(std::move(text));
  }
  std::vector<Value> items = interpreter.items(value);
  std::ranges::reverse(items);
  return Value::lazy(std::move(items));
}

Value filter_join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"d", "attribute"});
  const std::string separator = bound[0] != nullptr ? interpreter.text_of(*bound[0]) : "";
  const bool has_attribute = bound[1] != nullptr && !bound[1]->is(Value::Kind::kNone);
  std::string text;
  bool is_first = true;
  for (const Value& item : interpreter.items(value)) {
    interpreter.charge(separator.size());
    if (!std::exchange(is_first, false)) text += separator;
    text += interpreter.text_of(has_attribute ? value_at(item, *bound[1]) : item);
  }
  return Value::text(std::move(text));
}

// map(attribute='name', default=...) or map('filter', arguments...).
Value filter_map(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  std::vector<Value> results;
  if (!value.is_true()) return Value::lazy({});  // None too
  if (arguments.positional.empty()) {
    const auto bound = arguments.bind({"attribute", "default"});
    if (bound[0] == nullptr) throw Problem("map without a filter or an attribute");
    for (const Value& item : interpreter.items(value)) {
      interpreter.charge(64);
      Value found = value_at(item, *bound[0]);
      const bool is_missing = found.is_undefined() && bound[1] != nullptr && !bound[1]->is(Value::Kind::kNone);
      results.push_back(is_missing ? *bound[1] : std::move(found));
    }
    return Value::lazy(std::move(results));
  }
  const std::string& name = text_argument(arguments.positional[0], "the name of a filter");
  if (name == "map") throw Problem("map of map", "use a loop");
  const Arguments rest = without_first(arguments, 1);
  for (const Value& item : interpreter.items(value)) {
    interpreter.charge(64);
    results.push_back(interpreter.filter(name, item, rest));
  }
  return Value::lazy(std::move(results));
}

// select, reject, selectattr and rejectattr: the items that pass a test, or are true, or do not.
template <bool by_attribute, bool is_wanted>
Value filter_select(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!value.is_true()) return Value::lazy({});  // None too
  const std::size_t before = by_attribute ? 1 : 0;
  if (arguments.positional.size() < before) throw Problem("a selection without an attribute");
  const bool has_test = arguments.positional.size() > before;
  const Arguments rest = without_first(arguments, before + 1);
  std::vector<Value> results;
  for (Value& item : interpreter.items(value)) {
    interpreter.charge(64);
    const Value tested = by_attribute ? value_at(item, arguments.positional[0]) : item;
    const bool passes =
        has_test ? interpreter.test(text_argument(arguments.positional[before], "the name of a test"), tested, rest)
                 : tested.is_true();
    if (passes == is_wanted) results.push_back(std::move(item));
  }
  return Value::lazy(std::move(results));
}

// Sorts by keys, stably. Work is charged ahead, so that a comparison cannot exceed the limit.
void sort_by(Interpreter& interpreter, std::vector<std::pair<Value, Value>>& keyed, bool is_reverse) {
  std::size_t weight = 0, levels = 1;
  for (const auto& pair : keyed) weight += pair.first.weight() + 16;
  for (std::size_t size = keyed.size(); size > 1; size /= 2) ++levels;
  interpreter.charge(weight * levels);
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
}

Value filter_sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"reverse", "case_sensitive", "attribute"});
  const auto is_set = [&](std::size_t i) { return bound[i] != nullptr && bound[i]->is_true(); };
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : interpreter.items(value)) {
    Value key = sort_key(is_set(2) ? value_at(item, *bound[2]) : item, !is_set(1));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  sort_by(interpreter, keyed, is_set(0));
  std::vector<Value> items;
  for (auto& pair : keyed) items.push_back(std::move(pair.second));
  return Value::list(std::move(items));
}

Value filter_dict_sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"case_sensitive", "by", "reverse"});
  const auto is_set = [&](std::size_t i) { return bound[i] != nullptr && bound[i]->is_true(); };
  if (!value.is(Value::Kind::kDict)) throw Problem("dictsort of " + value.type_name());
  const std::string by = bound[1] != nullptr ? text_argument(*bound[1], "by") : "key";
  if (by != "key" && by != "value") throw Problem("dictsort by " + printable(by));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, member] : value.as_dict().members) {
    interpreter.charge(128);
    const Value name = key_value(key);
    keyed.emplace_back(sort_key(by == "key" ? name : member, !is_set(0)), Value::tuple({name, member}));
  }
  sort_by(interpreter, keyed, is_set(2));
  std::vector<Value> items;
  for (auto& pair : keyed) items.push_back(std::move(pair.second));
  return Value::list(std::move(items));
}

Value filter_unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"case_sensitive", "attribute"});
  const bool ignores_case = bound[0] == nullptr || !bound[0]->is_true();
  std::vector<Value> keys, items;
  for (Value& item : interpreter.items(value)) {
    Value key = sort_key(bound[1] != nullptr && bound[1]->is_true() ? value_at(item, *bound[1]) : item, ignores_case);
    interpreter.charge(keys.size() * 16 + key.weight());
    if (std::ranges::any_of(keys, [&](const Value& known) { return equal(known, key); })) continue;
    keys.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return Value::lazy(std::move(items));
}

template <bool is_max>
Value filter_extreme(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"case_sensitive", "attribute"});
  const bool ignores_case = bound[0] == nullptr || !bound[0]->is_true();
  const bool has_attribute = bound[1] != nullptr && bound[1]->is_true();
  std::optional<std::pair<Value, Value>> best;
  for (Value& item : interpreter.items(value)) {
    Value key = sort_key(has_attribute ? value_at(item, *bound[1]) : item, ignores_case);
    interpreter.charge(key.weight());
    if (best && !(is_max ? less(best->first, key) : less(key, best->first))) continue;
    best.emplace(std::move(key), std::move(item));
  }
  return best ? best->second : Value::undefined("the least or greatest item of none");
}

Value filter_sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind({"attribute", "start"});
  Value sum = bound[1] != nullptr ? *bound[1] : Value::integer(0);
  const bool has_attribute = bound[0] != nullptr && !bound[0]->is(Value::Kind::kNone);
  for (const Value& item : interpreter.items(value)) {
    sum = calculate(interpreter, Operator::kAdd, sum, has_attribute ? value_at(item, *bound[0]) : item);
  }
  return sum;
}

}  // namespace

Operation find_list_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Operation> kFilters = {
      {"list", filter_list},
      {"items", filter_items},
      {"first", filter_first},
      {"last", filter_last},
      {"reverse", filter_reverse},
      {"join", filter_join},
      {"map", filter_map},
      {"select", filter_select<false, true>},
      {"reject", filter_select<false, false>},
      {"selectattr", filter_select<true, true>},
      {"rejectattr", filter_select<true, false>},
      {"sort", filter_sort},
      {"dictsort", filter_dict_sort},
      {"unique", filter_unique},
      {"min", filter_extreme<false>},
      {"max", filter_extreme<true>},
      {"sum", filter_sum},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace megalith::jinja
