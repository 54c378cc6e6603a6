// Values of templates, with the semantics of Python's: numbers, text, lists and dictionaries in order of insertion.
// Values are immutable except the attributes of a namespace, so copies share their content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace megalith::jinja {

enum class ListKind { kList, kTuple, kLazy, kView, kRange };

struct Dict;
struct List;
struct Loop;
struct Namespace;
struct Callable;

// Limits of lists and dictionaries, so that printing or comparing one is cheap even if parts occur many times in it.
inline constexpr int kMaxValueDepth = 100;
inline constexpr std::size_t kMaxValueWeight = std::size_t{1} << 28;

// Problem of an operation on values. The interpreter adds the place in the template.
class Problem : public std::runtime_error {
 public:
  explicit Problem(const std::string& got, std::string remedy = "correct the template or the conversation")
      : std::runtime_error(got), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }

 private:
  std::string remedy_;
};

class Value {
 public:
  enum class Kind { kUndefined, kNone, kBool, kInt, kFloat, kText, kList, kDict, kNamespace, kLoop, kCallable };

  Value() = default;  // undefined
  static Value undefined(std::string name);
  static Value undefined_variable(const std::string& name);  // which lives longer than the value
  static Value none() { return Value(None{}); }
  static Value boolean(bool value) { return Value(value); }
  static Value integer(std::int64_t value) { return Value(value); }
  static Value real(double value) { return Value(value); }
  static Value text(std::string value) { return make_text(std::move(value), false); }
  static Value safe_text(std::string value) { return make_text(std::move(value), true); }  // of the filter `safe`
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value lazy(std::vector<Value> items);   // iterated once, as Python's generators
  static Value view(std::vector<Value> items);   // of a dictionary: without text and without items by number
  static Value range(std::vector<Value> items);  // without text
  static Value dict(Dict content);
  static Value of(std::shared_ptr<Namespace> value) { return Value(std::move(value)); }
  static Value of(std::shared_ptr<const Loop> value) { return Value(std::move(value)); }
  static Value callable(Callable value);

  Kind kind() const { return static_cast<Kind>(content_.index()); }
  bool is(Kind kind_of) const { return kind() == kind_of; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_text() const { return is(Kind::kText); }
  bool is_integer() const { return is(Kind::kInt) || is(Kind::kBool); }  // True is 1 in Python
  bool is_number() const { return is_integer() || is(Kind::kFloat); }

  // Access to the content; the kind must fit.
  std::string undefined_name() const;
  bool as_bool() const { return std::get<bool>(content_); }
  std::int64_t as_integer() const;
  double as_real() const;  // of any number
  const std::string& as_text() const { return std::get<TextPointer>(content_)->value; }
  bool is_safe_text() const { return is_text() && std::get<TextPointer>(content_)->is_safe; }
  const List& as_list() const { return *std::get<ListPointer>(content_); }
  const Dict& as_dict() const { return *std::get<DictPointer>(content_); }
  Namespace& as_namespace() const { return *std::get<std::shared_ptr<Namespace>>(content_); }
  const Loop& as_loop() const { return *std::get<std::shared_ptr<const Loop>>(content_); }
  const Callable& as_callable() const { return *std::get<std::shared_ptr<const Callable>>(content_); }

  bool is_true() const;           // Python's bool(value)
  std::string type_name() const;  // Python's, for messages
  int depth() const;              // levels of containers, 0 for scalars
  std::size_t weight() const;     // values and bytes of text in it, each occurrence counted

 private:
  struct Undefined {
    std::shared_ptr<const std::string> name;  // without an owner: of a variable
  };
  struct None {};
  struct Text {
    std::string value;
    bool is_safe = false;
  };
  using TextPointer = std::shared_ptr<const Text>;
  using ListPointer = std::shared_ptr<const List>;
  using DictPointer = std::shared_ptr<const Dict>;
  // The order is that of Kind.
  using Content =
      std::variant<Undefined, None, bool, std::int64_t, double, TextPointer, ListPointer, DictPointer,
                   std::shared_ptr<Namespace>, std::shared_ptr<const Loop>, std::shared_ptr<const Callable>>;

  explicit Value(None none) : content_(none) {}
  explicit Value(bool value) : content_(value) {}
  explicit Value(std::int64_t value) : content_(value) {}
  explicit Value(double value) : content_(value) {}
  explicit Value(TextPointer value) : content_(std::move(value)) {}
  explicit Value(ListPointer value) : content_(std::move(value)) {}
  explicit Value(DictPointer value) : content_(std::move(value)) {}
  explicit Value(std::shared_ptr<Namespace> value) : content_(std::move(value)) {}
  explicit Value(std::shared_ptr<const Loop> value) : content_(std::move(value)) {}
  explicit Value(std::shared_ptr<const Callable> value) : content_(std::move(value)) {}
  static Value make_text(std::string value, bool is_safe) {
    return Value(TextPointer(std::make_shared<const Text>(Text{.value = std::move(value), .is_safe = is_safe})));
  }
  static Value make_list(std::vector<Value> items, ListKind kind);

  Content content_;
};

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
  std::size_t weight = 1;
  mutable bool is_used = false;  // kLazy: iterated
};

// Whether list[0] is an item.
inline bool has_positions(ListKind kind) { return kind != ListKind::kLazy && kind != ListKind::kView; }

// Dictionary in order of insertion. Keys are texts; integers are kept as texts that are no UTF-8, so that they differ.
struct Dict {
  std::vector<std::pair<std::string, Value>> members;
  int depth = 1;
  std::size_t weight = 1;

  void set(std::string key, Value value);         // replaces the value of a known key
  const Value* find(std::string_view key) const;  // null: no such key

 private:
  std::size_t position(std::string_view key) const;         // members.size(): no such key
  static constexpr std::size_t kSmall = 8;                  // members that are searched one by one
  std::unordered_map<std::string, std::size_t> positions_;  // empty up to kSmall members
};

// Text of a key in a Dict, and its value. Keys of other kinds than text and integer are a Problem.
std::string key_text(const Value& key);
Value key_value(const std::string& key);
// Member of a dictionary by a key of any kind; null: no such key.
const Value* find_member(const Dict& dict, const Value& key);

// Result of namespace(...): the one kind of value that templates modify.
struct Namespace {
  Dict attributes;
};

// The variable `loop` of a {% for %}.
struct Loop {
  Value items;  // a list
  std::size_t index = 0;
};

struct Macro;

// Function, macro or method of a value.
struct Callable {
  std::string name;
  Value self;                    // the value of a method
  const Macro* macro = nullptr;  // else a function or method by name
};

// Equality and order of Python; `less` throws a Problem for values without an order.
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);
// `item in container`.
bool contains(const Value& container, const Value& item);

// Items of an iteration over a value. A dictionary yields its keys, a text its characters, undefined nothing.
std::vector<Value> items_of(const Value& value);
// Python's len(value).
std::int64_t length_of(const Value& value);

}  // namespace megalith::jinja
