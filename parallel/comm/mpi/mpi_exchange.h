// Non-blocking messages between processes, and errors of MPI. Internal to parallel/comm.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

#include "parallel/comm/mpi/mpi_process.h"

namespace megalith {

[[noreturn]] void fail_mpi(int code, const std::string& what);
inline void check_mpi(int code, const std::string& what) {
  if (code != MPI_SUCCESS) fail_mpi(code, what);
}

// Messages that are waited for together. After an error, pending messages are not canceled: their buffers may still be
// written. Therefore an error aborts the process for all its groups, and MpiRuntime ends it.
class MpiExchange {
 public:
  MpiExchange(MPI_Comm comm, MpiProcess& process) : comm_(comm), process_(process) {}

  // `call` describes the call: number, tensor, count.
  void begin(std::string what, std::string call) {
    what_ = std::move(what);
    call_ = std::move(call);
  }
  void send(const void* data, std::size_t bytes, int peer, int tag);
  void receive(void* data, std::size_t bytes, int peer, int tag);
  // Adds a request; peer and bytes are -1 for a non-blocking collective.
  MPI_Request* add(int peer, int expected_bytes);
  void wait();

 private:
  struct Peer {
    int rank;
    int expected_bytes;  // for a receive; -1: a send or a collective
  };

  void wait_for_all();
  template <class Post>
  void for_pieces(std::size_t bytes, Post post);
  [[noreturn]] void fail_size(const Peer& peer, const std::string& got) const;
  [[noreturn]] void fail_request(int code) const;
  [[noreturn]] void fail_late();

  MPI_Comm comm_;
  MpiProcess& process_;
  std::string what_;
  std::string call_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<Peer> peers_;
};

}  // namespace megalith
