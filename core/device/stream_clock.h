// The records, of any stream, that a point in a stream's order comes after: a vector clock (Fidge 1988, Mattern 1989).
// A stream keeps one of its end, an event one of its latest record, so that a wait that orders nothing is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace megalith {

class StreamClock {
 public:
  StreamClock() = default;  // of a record that nobody knows
  explicit StreamClock(std::uint64_t stream) : records_{{.stream = stream}} {}

  bool known() const { return !records_.empty(); }
  void forget() { records_.clear(); }
  // The stream that this is the clock of records once more.
  void advance() { ++records_.front().number; }
  // Whether this point comes after the record that `record` is the clock of.
  bool covers(const StreamClock& record) const {
    if (!record.known()) return false;
    const Record& own = record.records_.front();
    const auto found = std::ranges::find(records_, own.stream, &Record::stream);
    return found != records_.end() && found->number >= own.number;
  }
  // From here on this point comes after that record too.
  void merge(const StreamClock& record) {
    for (const Record& other : record.records_) {
      const auto found = std::ranges::find(records_, other.stream, &Record::stream);
      if (found == records_.end()) {
        records_.push_back(other);
      } else {
        found->number = std::max(found->number, other.number);
      }
    }
  }

 private:
  struct Record {
    std::uint64_t stream;     // unique in the process
    std::int64_t number = 0;  // of its records
  };
  std::vector<Record> records_;  // a few, the stream's own first
};

}  // namespace megalith
