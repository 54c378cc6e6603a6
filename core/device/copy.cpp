#include "core/device/copy.h"

#include <cstring>

namespace megalith {

namespace {

void copy(Stream& stream, std::string_view name, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (stream.needs_access()) {
    Access access(name);
    access.add(from, bytes, false);
    access.add(to, bytes, true);
    access.set_copy();
    stream.announce(access);
  }
  if (CpuStream* cpu = stream.cpu()) cpu->enqueue([=] { std::memcpy(to, from, bytes); });
  if (CudaStream* cuda = stream.cuda()) cuda->copy(to, from, bytes);
  stream.end_op();
}

}  // namespace

void copy_from_host(Stream& stream, void* device, const void* host, std::size_t bytes) {
  copy(stream, kCopyFromHost, device, host, bytes);
}

void copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes) {
  copy(stream, kCopyToHost, host, device, bytes);
}

}  // namespace megalith
