// Group of one rank: nothing is exchanged, and results are copies.
#pragma once

#include "parallel/comm/communicator.h"

namespace megalith {

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::string name) : Communicator(std::move(name), 0, 1) {}

  void host_barrier() override {}
  std::vector<std::string> host_all_gather(const std::string& mine) override { return {mine}; }
  bool host_any(bool mine) override { return mine; }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  void abort(const std::string&) override {}  // no rank waits

 protected:
  void run(const Collective& collective) override;
  void run(Stream& stream, CudaStream& cuda, const Collective& collective) override;
};

}  // namespace megalith
