#include "parallel/comm/single_communicator.h"

#include <cstring>

#include "parallel/comm/exchanged_rows.h"

namespace megalith {

std::unique_ptr<Communicator> SingleCommunicator::split(int, int, const std::string& name) {
  return std::make_unique<SingleCommunicator>(name);
}

void SingleCommunicator::run(const Collective& collective) {
  if (const ExchangeRows* const op = exchange_rows_in(collective)) return copy_rows(*op, 0, *op);
  copy_alone(collective, [](const Tensor& in, const Tensor& out) { std::memcpy(out.data, in.data, in.bytes()); });
}

void SingleCommunicator::run(Stream& stream, CudaStream& cuda, const Collective& collective) {
  if (exchange_rows_in(collective) != nullptr) return Communicator::run(stream, cuda, collective);
  copy_alone(collective, [&](const Tensor& in, const Tensor& out) { cuda.copy(out.data, in.data, in.bytes()); });
}

}  // namespace megalith
