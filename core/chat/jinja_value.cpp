#include "core/chat/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/base/text/parse_number.h"
#include "core/chat/python_text.h"
#include "core/checkpoint/printable.h"

namespace megalith::jinja {

namespace {

constexpr char kIntegerKey = '\xff';  // begins no text of UTF-8

int checked_depth(int depth) {
  if (depth > kMaxValueDepth) {
    throw Problem(fmt::format("a value of more than {} levels", kMaxValueDepth), "nest lists and objects less");
  }
  return depth;
}

std::size_t checked_weight(std::size_t weight) {
  if (weight > kMaxValueWeight) {
    throw Problem(fmt::format("a value of more than {} bytes", kMaxValueWeight), "build smaller lists and texts");
  }
  return weight;
}

bool equal_lists(const List& a, const List& b) {
  if (a.kind == ListKind::kLazy || b.kind == ListKind::kLazy) return &a == &b;
  return a.kind == b.kind && std::ranges::equal(a.items, b.items, equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.members.size() != b.members.size()) return false;
  return std::ranges::all_of(a.members, [&](const auto& member) {
    const Value* other = b.find(member.first);
    return other != nullptr && equal(member.second, *other);
  });
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) {
    return a.as_integer() < b.as_integer() ? -1 : static_cast<int>(a.as_integer() > b.as_integer());
  }
  return a.as_real() < b.as_real() ? -1 : static_cast<int>(a.as_real() > b.as_real());
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.content_ = Undefined{std::make_shared<const std::string>(std::move(name))};
  return value;
}

Value Value::undefined_variable(const std::string& name) {
  Value value;
  value.content_ = Undefined{std::shared_ptr<const std::string>(std::shared_ptr<void>(), &name)};
  return value;
}

Value Value::make_list(std::vector<Value> items, ListKind kind) {
  int depth = 0;
  std::size_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight = checked_weight(weight + item.weight());
  }
  depth = checked_depth(depth + 1);
  return Value(ListPointer(
      std::make_shared<List>(List{.items = std::move(items), .kind = kind, .depth = depth, .weight = weight})));
}

Value Value::list(std::vector<Value> items) { return make_list(std::move(items), ListKind::kList); }
Value Value::tuple(std::vector<Value> items) { return make_list(std::move(items), ListKind::kTuple); }
Value Value::lazy(std::vector<Value> items) { return make_list(std::move(items), ListKind::kLazy); }
Value Value::view(std::vector<Value> items) { return make_list(std::move(items), ListKind::kView); }

Value Value::range(std::vector<Value> items) { return make_list(std::move(items), ListKind::kRange); }

Value Value::dict(Dict content) { return Value(DictPointer(std::make_shared<const Dict>(std::move(content)))); }

Value Value::callable(Callable value) {
  checked_depth(value.self.depth() + 1);
  return Value(std::make_shared<const Callable>(std::move(value)));
}

std::string Value::undefined_name() const {
  const auto& name = std::get<Undefined>(content_).name;
  if (!name) return "a value that is undefined";
  return name.use_count() > 0 ? *name : printable(*name) + ", which is undefined";
}

std::int64_t Value::as_integer() const {
  return is(Kind::kBool) ? std::int64_t{as_bool()} : std::get<std::int64_t>(content_);
}

double Value::as_real() const {
  return is(Kind::kFloat) ? std::get<double>(content_) : static_cast<double>(as_integer());
}

bool Value::is_true() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool: return as_bool();
    case Kind::kInt: return as_integer() != 0;
    case Kind::kFloat: return as_real() != 0;
    case Kind::kText: return !as_text().empty();
    case Kind::kList: return as_list().kind == ListKind::kLazy || !as_list().items.empty();
    case Kind::kDict: return !as_dict().members.empty();
    default: return true;
  }
}

std::string Value::type_name() const {
  constexpr const char* kNames[] = {"undefined", "None", "bool",      "int",  "float",   "str",
                                    "list",      "dict", "namespace", "loop", "function"};
  if (is(Kind::kList)) {
    constexpr const char* kListNames[] = {"list", "tuple", "generator", "view", "range"};
    return kListNames[static_cast<std::size_t>(as_list().kind)];
  }
  return kNames[static_cast<std::size_t>(kind())];
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList: return as_list().depth;
    case Kind::kDict: return as_dict().depth;
    case Kind::kLoop: return as_loop().items.depth() + 1;
    case Kind::kCallable: return as_callable().self.depth() + 1;
    default: return 0;
  }
}

std::size_t Value::weight() const {
  switch (kind()) {
    case Kind::kText: return as_text().size() + 1;
    case Kind::kList: return as_list().weight;
    case Kind::kDict: return as_dict().weight;
    default: return 1;
  }
}

void Dict::set(std::string key, Value value) {
  depth = std::max(depth, checked_depth(value.depth() + 1));
  const std::size_t known = position(key);
  if (known < members.size()) {
    weight = checked_weight(weight - members[known].second.weight() + value.weight());
    members[known].second = std::move(value);
    return;
  }
  weight = checked_weight(weight + key.size() + 1 + value.weight());
  members.emplace_back(std::move(key), std::move(value));
  if (members.size() <= kSmall) return;
  for (std::size_t i = positions_.size(); i < members.size(); ++i) positions_.emplace(members[i].first, i);
}

const Value* Dict::find(std::string_view key) const {
  const std::size_t known = position(key);
  return known < members.size() ? &members[known].second : nullptr;
}

std::size_t Dict::position(std::string_view key) const {
  if (positions_.empty()) {
    const auto found = std::ranges::find_if(members, [&](const auto& member) { return member.first == key; });
    return static_cast<std::size_t>(found - members.begin());
  }
  const auto found = positions_.find(std::string(key));
  return found == positions_.end() ? members.size() : found->second;
}

std::string key_text(const Value& key) {
  if (key.is_text()) return key.as_text();
  if (!key.is(Value::Kind::kInt)) throw Problem("a key of a dictionary of type " + key.type_name(), "use a text");
  return kIntegerKey + std::to_string(key.as_integer());
}

Value key_value(const std::string& key) {
  if (!key.starts_with(kIntegerKey)) return Value::text(key);
  return Value::integer(parse_number<std::int64_t>(std::string_view(key).substr(1)).value_or(0));
}

const Value* find_member(const Dict& dict, const Value& key) {
  if (key.is_text()) return dict.find(key.as_text());
  return key.is_integer() ? dict.find(key_text(Value::integer(key.as_integer()))) : nullptr;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0 && a.as_real() == b.as_real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::kText: return a.as_text() == b.as_text();
    case Value::Kind::kList: return equal_lists(a.as_list(), b.as_list());
    case Value::Kind::kDict: return equal_dicts(a.as_dict(), b.as_dict());
    case Value::Kind::kNamespace: return &a.as_namespace() == &b.as_namespace();
    case Value::Kind::kLoop: return &a.as_loop() == &b.as_loop();
    case Value::Kind::kCallable:
      return a.as_callable().macro == b.as_callable().macro && a.as_callable().name == b.as_callable().name &&
             equal(a.as_callable().self, b.as_callable().self);
    default: return true;
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) < 0;
  if (a.is_text() && b.is_text()) return a.as_text() < b.as_text();
  throw Problem(fmt::format("an order of {} and {}", a.type_name(), b.type_name()));
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Value::Kind::kUndefined: return false;
    case Value::Kind::kText:
      if (!item.is_text()) throw Problem(fmt::format("'in' of {} in a str", item.type_name()));
      return container.as_text().find(item.as_text()) != std::string::npos;
    case Value::Kind::kDict: return find_member(container.as_dict(), item) != nullptr;
    case Value::Kind::kList: {
      const std::vector<Value> items = items_of(container);
      return std::ranges::any_of(items, [&](const Value& other) { return equal(other, item); });
    }
    default: throw Problem(fmt::format("'in' of {}", container.type_name()));
  }
}

std::vector<Value> items_of(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::Kind::kUndefined: return items;
    case Value::Kind::kText:
      for (const std::string_view character : characters_of(value.as_text()))
        items.push_back(Value::text(std::string(character)));
      return items;
    case Value::Kind::kDict:
      for (const auto& [key, member] : value.as_dict().members) items.push_back(key_value(key));
      return items;
    case Value::Kind::kList:
      if (value.as_list().kind == ListKind::kLazy && std::exchange(value.as_list().is_used, true)) {
        throw Problem("a second use of a filter's items, which Jinja yields once", "append '| list' to the filter");
      }
      return value.as_list().items;
    default: throw Problem(fmt::format("an iteration over {}", value.type_name()));
  }
}

std::int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined: return 0;
    case Value::Kind::kText: return static_cast<std::int64_t>(count_characters(value.as_text()));
    case Value::Kind::kDict: return static_cast<std::int64_t>(value.as_dict().members.size());
    case Value::Kind::kList:
      if (value.as_list().kind == ListKind::kLazy) break;
      return static_cast<std::int64_t>(value.as_list().items.size());
    default: break;
  }
  throw Problem(fmt::format("the length of {}", value.type_name()), "append '| list' if it is a filter's result");
}

}  // namespace megalith::jinja
