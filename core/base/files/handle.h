// Owner of a C resource: Handle<FILE*, [](FILE* f) { std::fclose(f); }> file(std::fopen(...)).
#pragma once

#include <utility>

namespace megalith {

template <class Resource, auto kRelease, auto kEmpty = Resource{}>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Resource resource) : resource_(resource) {}
  Handle(Handle&& other) noexcept : resource_(std::exchange(other.resource_, kEmpty)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(resource_, other.resource_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  Resource get() const { return resource_; }
  Resource release() { return std::exchange(resource_, kEmpty); }
  explicit operator bool() const { return resource_ != kEmpty; }
  void reset() {
    if (resource_ != kEmpty) kRelease(std::exchange(resource_, kEmpty));
  }

 private:
  Resource resource_ = kEmpty;
};

}  // namespace megalith
