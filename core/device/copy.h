// Copies between host and device memory, ordered on a stream. The host memory must stay untouched until the host has
// waited for the stream, or for an event after the copy. On CUDA, only memory of a HostArena copies asynchronously.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/device/stream.h"

namespace megalith {

inline constexpr std::string_view kCopyFromHost = "copy_from_host", kCopyToHost = "copy_to_host";  // op names

void copy_from_host(Stream& stream, void* device, const void* host, std::size_t bytes);
void copy_to_host(Stream& stream, void* host, const void* device, std::size_t bytes);

}  // namespace megalith
