#include "tests/support/host_waits/host_waits.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace {

// Six registers hold the arguments of all functions below, whichever types they have.
using Word = std::uintptr_t;
using Function = Word (*)(Word, Word, Word, Word, Word, Word);
using Lookup = void* (*)(void*, const char*);

enum class Kind : std::uint8_t { kWait, kCopy, kQuestion };  // kCopy: a wait if memory is pageable
struct Watched {
  const char* name;
  Kind kind;
  int first, second;  // address arguments of a copy; -1: known not to be the host's
};

constexpr Watched kRuntime[] = {{"cudaStreamSynchronize", Kind::kWait, -1, -1},
                                {"cudaDeviceSynchronize", Kind::kWait, -1, -1},
                                {"cudaEventSynchronize", Kind::kWait, -1, -1},
                                {"cudaMemcpy", Kind::kWait, -1, -1},
                                {"cudaMemcpyToSymbol", Kind::kWait, -1, -1},
                                {"cudaMemcpyFromSymbol", Kind::kWait, -1, -1},
                                {"cudaMalloc", Kind::kWait, -1, -1},
                                {"cudaFree", Kind::kWait, -1, -1},
                                {"cudaMallocHost", Kind::kWait, -1, -1},
                                {"cudaHostAlloc", Kind::kWait, -1, -1},
                                {"cudaFreeHost", Kind::kWait, -1, -1},
                                {"cudaHostRegister", Kind::kWait, -1, -1},
                                {"cudaHostUnregister", Kind::kWait, -1, -1},
                                {"cudaMemcpyAsync", Kind::kCopy, 0, 1},
                                {"cudaStreamQuery", Kind::kQuestion, -1, -1},
                                {"cudaEventQuery", Kind::kQuestion, -1, -1}};

constexpr Watched kDriver[] = {
    {"cuStreamSynchronize", Kind::kWait, -1, -1}, {"cuCtxSynchronize", Kind::kWait, -1, -1},
    {"cuEventSynchronize", Kind::kWait, -1, -1},  {"cuMemcpy", Kind::kWait, -1, -1},
    {"cuMemcpyHtoD", Kind::kWait, -1, -1},        {"cuMemcpyDtoH", Kind::kWait, -1, -1},
    {"cuMemcpyDtoD", Kind::kWait, -1, -1},        {"cuMemcpyPeer", Kind::kWait, -1, -1},
    {"cuMemcpy2D", Kind::kWait, -1, -1},          {"cuMemcpy2DUnaligned", Kind::kWait, -1, -1},
    {"cuMemcpy3D", Kind::kWait, -1, -1},          {"cuMemAlloc", Kind::kWait, -1, -1},
    {"cuMemFree", Kind::kWait, -1, -1},           {"cuMemAllocHost", Kind::kWait, -1, -1},
    {"cuMemHostAlloc", Kind::kWait, -1, -1},      {"cuMemFreeHost", Kind::kWait, -1, -1},
    {"cuMemHostRegister", Kind::kWait, -1, -1},   {"cuMemHostUnregister", Kind::kWait, -1, -1},
    {"cuMemcpyAsync", Kind::kCopy, 0, 1},         {"cuMemcpyHtoDAsync", Kind::kCopy, -1, 1},
    {"cuMemcpyDtoHAsync", Kind::kCopy, 0, -1},    {"cuStreamQuery", Kind::kQuestion, -1, -1},
    {"cuEventQuery", Kind::kQuestion, -1, -1}};

// Each function of the driver has several forms, by version and by kind of default stream.
constexpr std::size_t kForms = 6;
constexpr std::size_t kWatched = std::size(kDriver);

std::atomic<Function> g_real[kWatched][kForms];
std::atomic<Function> g_get_address[4];
std::atomic<Function> g_pointer_attribute;
std::atomic<long> g_unseen;

thread_local bool t_counts = false;
thread_local HostWaits t_waits = {};

void* lookup(void* handle, const char* name) {
  static const auto real = [] {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return reinterpret_cast<Lookup>(found != nullptr ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  }();
  return real(handle, name);
}

bool is_pageable(Word address) {
  constexpr Word kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE; an error of memory that CUDA does not know
  unsigned type = 0;
  const Function ask = g_pointer_attribute.load();
  return ask != nullptr && ask(reinterpret_cast<Word>(&type), kMemoryType, address, 0, 0, 0) != 0;
}

void count(const Watched& watched, const Word (&arguments)[2], long& waits) {
  if (!t_counts) return;
  if (watched.kind == Kind::kQuestion) {
    ++t_waits.questions;
    return;
  }
  const auto pageable = [&](int which) { return which >= 0 && is_pageable(arguments[which]); };
  if (watched.kind == Kind::kCopy && !pageable(watched.first) && !pageable(watched.second)) return;
  ++waits;
  if (t_waits.first[0] == '\0') std::strncpy(t_waits.first, watched.name, sizeof(t_waits.first) - 1);
}

template <std::size_t I>
Word call_runtime(Word a, Word b, Word c, Word d, Word e, Word f) {
  static const auto real = reinterpret_cast<Function>(lookup(RTLD_NEXT, kRuntime[I].name));
  count(kRuntime[I], {a, b}, t_waits.of_runtime);
  return real(a, b, c, d, e, f);
}

template <std::size_t I>
Word call_driver(Word a, Word b, Word c, Word d, Word e, Word f) {
  count(kDriver[I / kForms], {a, b}, t_waits.of_driver);
  return g_real[I / kForms][I % kForms].load()(a, b, c, d, e, f);
}

template <std::size_t... I>
constexpr std::array<Function, sizeof...(I)> driver_calls(std::index_sequence<I...>) {
  return {call_driver<I>...};
}
constexpr std::array kDriverCalls = driver_calls(std::make_index_sequence<kWatched * kForms>());

// "cuMemcpyHtoD" of "cuMemcpyHtoD_v2" and "cuMemcpyHtoD_v2_ptds".
std::string_view base_of(std::string_view name) {
  for (const std::string_view suffix : {"_ptds", "_ptsz", "_v2", "_v3"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  return name;
}

template <std::size_t I>
Word get_address(Word name, Word out, Word version, Word flags, Word status, Word f);
constexpr Function kGetAddress[4] = {get_address<0>, get_address<1>, get_address<2>, get_address<3>};

// Symbol returned for a function of the driver.
Word in_front_of(const char* name, Word found) {
  const auto real = reinterpret_cast<Function>(found);
  if (found == 0) return found;
  const std::string_view base = base_of(name);
  const auto place = [real](std::atomic<Function>* forms, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      Function none = nullptr;
      if (forms[i].compare_exchange_strong(none, real) || none == real) return i;
    }
    ++g_unseen;
    return size;
  };
  if (base == "cuPointerGetAttribute") g_pointer_attribute = real;
  if (base == "cuGetProcAddress") {
    const std::size_t form = place(g_get_address, std::size(g_get_address));
    return form < std::size(g_get_address) ? reinterpret_cast<Word>(kGetAddress[form]) : found;
  }
  for (std::size_t i = 0; i < kWatched; ++i) {
    if (base != kDriver[i].name) continue;
    const std::size_t form = place(g_real[i], kForms);
    return form < kForms ? reinterpret_cast<Word>(kDriverCalls[i * kForms + form]) : found;
  }
  return found;
}

template <std::size_t I>
Word get_address(Word name, Word out, Word version, Word flags, Word status, Word f) {
  const Function real = g_get_address[I].load();
  const Word result = real(name, out, version, flags, status, f);
  if (g_pointer_attribute.load() == nullptr) {
    Word found = 0;
    if (real(reinterpret_cast<Word>("cuPointerGetAttribute"), reinterpret_cast<Word>(&found), 4000, 0, 0, 0) == 0)
      g_pointer_attribute = reinterpret_cast<Function>(found);
  }
  auto* const function = reinterpret_cast<Word*>(out);
  if (result == 0 && function != nullptr) *function = in_front_of(reinterpret_cast<const char*>(name), *function);
  return result;
}

bool is_of_driver(const char* name) { return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z'; }

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void host_waits_begin() {
  t_waits = {};
  t_counts = true;
}

EXPORTED HostWaits host_waits_end() {
  t_counts = false;
  t_waits.unseen = g_unseen;
  return t_waits;
}

// dlsym finds the next symbol relative to its caller: the call must be last here, a jump.
EXPORTED __attribute__((optimize("O2"))) void* dlsym(void* handle, const char* name) {
  if (is_of_driver(name))
    return reinterpret_cast<void*>(in_front_of(name, reinterpret_cast<Word>(lookup(handle, name))));
  return lookup(handle, name);
}

#define RUNTIME(NAME, INDEX)                                           \
  EXPORTED Word NAME(Word a, Word b, Word c, Word d, Word e, Word f) { \
    static_assert(std::string_view(kRuntime[INDEX].name) == #NAME);    \
    return call_runtime<INDEX>(a, b, c, d, e, f);                      \
  }
RUNTIME(cudaStreamSynchronize, 0)
RUNTIME(cudaDeviceSynchronize, 1)
RUNTIME(cudaEventSynchronize, 2)
RUNTIME(cudaMemcpy, 3)
RUNTIME(cudaMemcpyToSymbol, 4)
RUNTIME(cudaMemcpyFromSymbol, 5)
RUNTIME(cudaMalloc, 6)
RUNTIME(cudaFree, 7)
RUNTIME(cudaMallocHost, 8)
RUNTIME(cudaHostAlloc, 9)
RUNTIME(cudaFreeHost, 10)
RUNTIME(cudaHostRegister, 11)
RUNTIME(cudaHostUnregister, 12)
RUNTIME(cudaMemcpyAsync, 13)
RUNTIME(cudaStreamQuery, 14)
RUNTIME(cudaEventQuery, 15)
}
