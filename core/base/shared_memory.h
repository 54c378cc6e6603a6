// Memory that processes of one host share, without a name that could outlive them (memfd_create(2)).
#pragma once

#include <cstddef>
#include <string>

namespace megalith {

class SharedMemory {
 public:
  SharedMemory() = default;  // of no bytes: data() is null
  // Zeros. Of no bytes where the system gives none.
  static SharedMemory create(std::size_t bytes);
  // What create() made in the process that told ticket() and still has it; of no bytes where this one cannot reach it.
  static SharedMemory open(const std::string& ticket, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::string ticket() const;

 private:
  SharedMemory(int file, std::size_t bytes);

  int file_ = -1;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace megalith
