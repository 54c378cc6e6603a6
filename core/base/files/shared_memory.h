// Memory that processes of one host share, without a name that could outlive them (memfd_create(2)).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/files/file.h"

namespace megalith {

class SharedMemory {
 public:
  SharedMemory() = default;  // of no bytes: data() is null
  // Zeros. Of no bytes where the system gives none.
  static SharedMemory create(std::size_t bytes);
  // What create() made in the process that told ticket() and still has it; of no bytes where this one cannot reach it.
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
