#include "parallel/comm/single_communicator.h"

#include <cstring>

#include "core/base/error.h"

namespace megalith {

void SingleCommunicator::run_on(CudaStream& stream, std::string_view, const std::function<void()>& task) {
  stream_ = &stream;
  task();
  stream_ = nullptr;
}

void SingleCommunicator::copy(const Tensor& from, const Tensor& to) {
  if (from.data == to.data || from.bytes() == 0) return;
  if (stream_ != nullptr) return stream_->copy(to.data, from.data, from.bytes());
  std::memcpy(to.data, from.data, from.bytes());
}

std::unique_ptr<Communicator> SingleCommunicator::split(int, int, const std::string& name) {
  return std::make_unique<SingleCommunicator>(name);
}

void SingleCommunicator::do_all_reduce(const Tensor&, ReduceOp) {}
void SingleCommunicator::do_reduce_scatter(const Tensor& in, const Tensor& out) { copy(in, out); }
void SingleCommunicator::do_all_gather(const Tensor& in, const Tensor& out) { copy(in, out); }

void SingleCommunicator::do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                                         const std::vector<std::int64_t>& out_rows) {
  require(in_rows == out_rows, "all_to_all_v of one rank with different counts in and out");
  copy(in, out);
}

void SingleCommunicator::do_broadcast(const Tensor&, int) {}
void SingleCommunicator::do_send(const Tensor&, int) { require(false, "a group of one rank has no peer"); }
void SingleCommunicator::do_receive(const Tensor&, int) { require(false, "a group of one rank has no peer"); }

}  // namespace megalith
