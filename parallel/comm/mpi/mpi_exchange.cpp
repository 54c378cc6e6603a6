#include "parallel/comm/mpi/mpi_exchange.h"

#include <fmt/format.h>

#include <algorithm>

namespace megalith {

void fail_mpi(int code, const std::string& what) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail({.code = ExitCode::kCommunication,
        .subject = what,
        .got = std::string(text, static_cast<std::size_t>(length)),
        .remedy = "see whether another rank ended or made another call"});
}

// Empty messages are sent too, so that sender and receiver detect different sizes.
template <class Post>
void MpiExchange::for_pieces(std::size_t bytes, Post post) {
  std::size_t offset = 0;
  do {
    const std::size_t piece = std::min(bytes - offset, process_.options.max_message_bytes);
    post(offset, static_cast<int>(piece));
    offset += piece;
  } while (offset < bytes);
}

void MpiExchange::send(const void* data, std::size_t bytes, int peer, int tag) {
  for_pieces(bytes, [&](std::size_t offset, int count) {
    check_mpi(MPI_Isend(static_cast<const std::byte*>(data) + offset, count, MPI_BYTE, peer, tag, comm_, add(peer, -1)),
              what_);
  });
}

void MpiExchange::receive(void* data, std::size_t bytes, int peer, int tag) {
  for_pieces(bytes, [&](std::size_t offset, int count) {
    check_mpi(MPI_Irecv(static_cast<std::byte*>(data) + offset, count, MPI_BYTE, peer, tag, comm_, add(peer, count)),
              what_);
  });
}

MPI_Request* MpiExchange::add(int peer, int expected_bytes) {
  peers_.push_back({peer, expected_bytes});
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

void MpiExchange::wait() {
  try {
    wait_for_all();
  } catch (const Error& error) {
    process_.abort(error.what());
    for (std::size_t i = 0; i < peers_.size(); ++i) {  // stops writes to memory that unwinding frees
      if (peers_[i].expected_bytes >= 0 && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
    }
    throw;
  }
  requests_.clear();
  peers_.clear();
}

void MpiExchange::wait_for_all() {
  Backoff backoff(process_.options.timeout + process_.grace);
  statuses_.resize(requests_.size());
  for (int done = 0; done == 0;) {
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code != MPI_SUCCESS) fail_request(code);
    if (done != 0) break;
    process_.throw_if_aborted();
    if (!backoff.pause()) fail_late();
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].expected_bytes < 0) continue;
    int count = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &count);
    if (count != peers_[i].expected_bytes) fail_size(peers_[i], fmt::format("{}", count));
  }
}

void MpiExchange::fail_size(const Peer& peer, const std::string& got) const {
  fail({.code = ExitCode::kCommunication,
        .subject = fmt::format("{}: message from rank {}", what_, peer.rank),
        .expected = fmt::format("{} bytes for {}", peer.expected_bytes, call_),
        .got = got,
        .remedy = "all ranks of a group must make the same calls with the same sizes"});
}

void MpiExchange::fail_request(int code) const {
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  for (std::size_t i = 0; error_class == MPI_ERR_IN_STATUS && i < peers_.size(); ++i) {
    const int error = statuses_[i].MPI_ERROR;
    if (error == MPI_SUCCESS || error == MPI_ERR_PENDING) continue;
    int one_class = MPI_SUCCESS;
    MPI_Error_class(error, &one_class);
    if (one_class == MPI_ERR_TRUNCATE) fail_size(peers_[i], "more");
    fail_mpi(error, fmt::format("{}: rank {}", what_, peers_[i].rank));
  }
  if (error_class == MPI_ERR_TRUNCATE) fail_size(peers_.front(), "more");
  fail_mpi(code, what_);
}

void MpiExchange::fail_late() {
  std::string late;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    int done = 0;
    MPI_Status status;
    MPI_Request_get_status(requests_[i], &done, &status);
    const std::string name = peers_[i].rank < 0 ? std::string("a peer") : fmt::format("rank {}", peers_[i].rank);
    if (done == 0 && late.find(name) == std::string::npos) late += (late.empty() ? "" : ", ") + name;
  }
  fail({.code = ExitCode::kCommunication,
        .subject = what_,
        .expected = fmt::format("all ranks within {} ms", process_.options.timeout.count()),
        .got = "no answer from " + late,
        .remedy = fmt::format("see whether that rank hangs or made another call than {}", call_)});
}

}  // namespace megalith
