// Anonymous memory that processes of one host share; no name outlives them (memfd_create(2)).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/files/file.h"

namespace megalith {

class SharedMemory {
 public:
  SharedMemory() = default;  // no bytes: data() is null
  // Creates zeroed memory. bytes() is 0 if the system provides none.
  static SharedMemory create(std::size_t bytes);
  // Opens the memory that another live process created with this ticket(). bytes() is 0 if it is unreachable.
  static SharedMemory open(const std::string& ticket, std::size_t bytes);

  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  std::string ticket() const;

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* data) const;
  };
  SharedMemory(Descriptor file, std::size_t bytes);

  Descriptor file_;
  std::unique_ptr<void, Unmap> memory_;
};

}  // namespace megalith
