// The group of one rank: nothing is exchanged, results are copies.
#pragma once

#include "parallel/comm/communicator.h"

namespace megalith {

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::string name) : Communicator(std::move(name), 0, 1) {}

  void host_barrier() override {}
  std::vector<std::string> host_all_gather(const std::string& mine) override { return {mine}; }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  void abort(const std::string&) override {}  // nobody waits

 protected:
  void run_on(CudaStream& stream, std::string_view call, const std::function<void()>& task) override;
  void do_all_reduce(const Tensor& buffer, ReduceOp op) override;
  void do_reduce_scatter(const Tensor& in, const Tensor& out) override;
  void do_all_gather(const Tensor& in, const Tensor& out) override;
  void do_all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& in_rows, const Tensor& out,
                       const std::vector<std::int64_t>& out_rows) override;
  void do_broadcast(const Tensor& buffer, int root) override;
  void do_send(const Tensor& buffer, int peer) override;
  void do_receive(const Tensor& buffer, int peer) override;

 private:
  void copy(const Tensor& from, const Tensor& to);

  CudaStream* stream_ = nullptr;  // inside run_on
};

}  // namespace megalith
