// Forwards for the functions of cuBLASLt that this program calls. The first call loads the library. Its loader
// relocates 370,000 addresses, which would add 0.15 s to each start, even without a GPU.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "core/base/error.h"

namespace megalith {
namespace {

void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  if (void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const std::string why = ::dlerror();
  if (void* const library = ::dlopen(MEGALITH_CUBLASLT, RTLD_NOW | RTLD_LOCAL)) return library;
  fail({.code = ExitCode::kUsage,
        .subject = name,
        .expected = "a library of the CUDA Toolkit that can be loaded",
        .got = fmt::format("{}; {}", why, ::dlerror()),
        .remedy = "add its folder to LD_LIBRARY_PATH"});
}

void* library() {
  static void* const opened = open_library();
  return opened;
}

template <class Function>
Function find(const char* name) {
  void* const function = ::dlsym(library(), name);
  if (function == nullptr) fail({.subject = "cuBLASLt", .expected = name, .got = ::dlerror()});
  return reinterpret_cast<Function>(function);
}

}  // namespace
}  // namespace megalith

// Hidden visibility keeps other libraries from binding to these symbols instead of cuBLASLt's.
#define MEGALITH_FORWARD(Result, name, parameters, arguments)               \
  extern "C" __attribute__((visibility("hidden"))) Result name parameters { \
    static const auto function = megalith::find<decltype(&name)>(#name);    \
    return function arguments;                                              \
  }

using Status = cublasStatus_t;
using Handle = cublasLtHandle_t;
using Matrix = cublasLtMatrixLayout_t;
using Product = cublasLtMatmulDesc_t;
using Preference = cublasLtMatmulPreference_t;
using Algorithm = const cublasLtMatmulAlgo_t*;
using Results = cublasLtMatmulHeuristicResult_t*;

MEGALITH_FORWARD(Status, cublasLtCreate, (Handle * handle), (handle))
MEGALITH_FORWARD(Status, cublasLtDestroy, (Handle handle), (handle))
MEGALITH_FORWARD(const char*, cublasLtGetStatusName, (Status status), (status))
MEGALITH_FORWARD(const char*, cublasLtGetStatusString, (Status status), (status))
MEGALITH_FORWARD(std::size_t, cublasLtGetVersion, (), ())
MEGALITH_FORWARD(Status, cublasLtMatmul,
                 (Handle handle, Product product, const void* alpha, const void* a, Matrix of_a, const void* b,
                  Matrix of_b, const void* beta, const void* c, Matrix of_c, void* d, Matrix of_d, Algorithm algorithm,
                  void* workspace, std::size_t bytes, cudaStream_t stream),
                 (handle, product, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, bytes,
                  stream))
MEGALITH_FORWARD(Status, cublasLtMatmulAlgoCheck,
                 (Handle handle, Product product, Matrix a, Matrix b, Matrix c, Matrix d, Algorithm algorithm,
                  Results result),
                 (handle, product, a, b, c, d, algorithm, result))
MEGALITH_FORWARD(Status, cublasLtMatmulAlgoConfigGetAttribute,
                 (Algorithm algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, std::size_t bytes,
                  std::size_t* written),
                 (algorithm, attribute, value, bytes, written))
MEGALITH_FORWARD(Status, cublasLtMatmulAlgoGetHeuristic,
                 (Handle handle, Product product, Matrix a, Matrix b, Matrix c, Matrix d, Preference preference,
                  int count, cublasLtMatmulHeuristicResult_t results[], int* found),
                 (handle, product, a, b, c, d, preference, count, results, found))
MEGALITH_FORWARD(Status, cublasLtMatmulDescInit_internal,
                 (Product product, std::size_t bytes, cublasComputeType_t compute, cudaDataType_t scale),
                 (product, bytes, compute, scale))
MEGALITH_FORWARD(Status, cublasLtMatmulDescSetAttribute,
                 (Product product, cublasLtMatmulDescAttributes_t attribute, const void* value, std::size_t bytes),
                 (product, attribute, value, bytes))
MEGALITH_FORWARD(Status, cublasLtMatmulPreferenceInit_internal, (Preference preference, std::size_t bytes),
                 (preference, bytes))
MEGALITH_FORWARD(Status, cublasLtMatmulPreferenceSetAttribute,
                 (Preference preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                  std::size_t bytes),
                 (preference, attribute, value, bytes))
MEGALITH_FORWARD(Status, cublasLtMatrixLayoutInit_internal,
                 (Matrix matrix, std::size_t bytes, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                  std::int64_t stride),
                 (matrix, bytes, type, rows, columns, stride))
