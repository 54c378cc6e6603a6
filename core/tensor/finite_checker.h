// Finds the first NaN or Inf that a sequence of ops writes: the host scans each op's float tensors ahead of the next
// enqueue. Slow; for repeating a step whose result was not finite. Memory that an op declares as written but leaves
// alone must be finite beforehand, except rows that belong to no expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/instruments/access.h"

namespace megalith {

// The first op with an output, or an input, that is not finite.
struct NonFinite {
  std::int64_t ordinal = 0;   // number of the op since start(): equal on all ranks of a symmetric program
  std::string place;          // FiniteChecker::place at the op
  std::string op;             // "gemm"
  std::string tensor;         // the result of `name_of`
  bool input = false;         // the op read it: the value existed earlier
  std::string value;          // "nan", "inf" or "-inf"
  std::int64_t element = 0;   // index of the first, in the tensor's order
  std::int64_t count = 0;     // elements that are not finite
  std::int64_t elements = 0;  // elements of the tensor
  std::string dtype;
  std::int64_t expert = -1;  // expert that owns the row or weight; -1: none
};
// `gemm wrote nan to "fc1" (fp32, element 3 of 512, 2 not finite)`
std::string to_string(const NonFinite& found);

class FiniteChecker {
 public:
  FiniteChecker();
  FiniteChecker(const FiniteChecker&) = delete;
  FiniteChecker& operator=(const FiniteChecker&) = delete;

  // Observer for the Instruments of the streams to be watched.
  OpObserver* observer() { return &observer_; }

  // `name_of` returns the current name of the memory at an address; empty if it has none.
  void start(std::function<std::string(const void*)> name_of);
  // Sets the place of the following ops in the program: "layer 1 mlp, backward_data, microbatch 0".
  void set_place(std::string place) { place_ = std::move(place); }
  // Checks the last op and stops.
  std::optional<NonFinite> stop();
  // Stops without a result, after an error.
  void cancel();

 private:
  struct Op {
    Stream* stream = nullptr;
    std::string name;
    std::string place;
    std::vector<std::pair<AccessRange, std::string>> ranges;  // float tensors, with their names
  };

  void before(Stream& stream, const Access& access);
  void check_last();
  bool find(const Op& op, bool writes);
  std::int64_t expert_of(const Op& op, const AccessRange& range, std::int64_t element, std::int64_t elements);
  const std::byte* on_host(const Op& op, const void* begin, std::size_t bytes);

  OpObserver observer_;
  std::function<std::string(const void*)> name_of_;
  std::string place_;
  std::int64_t seen_ = 0;
  std::optional<Op> last_;
  std::optional<NonFinite> found_;
  std::vector<std::byte> staging_;
};

}  // namespace megalith
