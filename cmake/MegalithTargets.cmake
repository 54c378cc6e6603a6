# One library per folder: megalith_library(core_ops PUBLIC core_tensor) compiles every source of the current folder (or
# those that match SOURCES; less main.cpp and those that match the expressions of EXCLUDE) and links to the left only. Where CUDA is
# chosen, and nowhere else: with MEGALITH_CUDA the library holds the folder's *.cu, *_cuda.cpp, nccl_*.cpp and cuda/*,
# which alone, but for test programs that link megalith_cuda, see the headers of CUDA and of the targets in CUDA; without
# it, no_cuda/* defines the same symbols. All other sources are compiled the same way in both builds. COLD: what no step
# waits for, such as flags and log lines, is compiled fast rather than to be fast. Inline functions that hot and cold
# libraries share may come from either.
# Designated initializers leave fields at their defaults on purpose.
set(MEGALITH_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-missing-field-initializers)
# Places in messages are the repository's, also where ccache makes a source's path relative to the build folder.
file(RELATIVE_PATH build_to_source ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
string(REGEX REPLACE "/$" "" build_to_source "${build_to_source}")
set(MEGALITH_FLAGS -march=x86-64-v3 -ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -ffile-prefix-map=${build_to_source}/=)
# Of optimized builds: what turns an overrun into the end of the program.
set(MEGALITH_HARDENING -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -D_GLIBCXX_ASSERTIONS -fstack-protector-strong
                       -fstack-clash-protection)

function(megalith_compile_options target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  set(cxx_options ${MEGALITH_WARNINGS} ${MEGALITH_FLAGS} $<$<BOOL:${MEGALITH_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # a twelfth of a source's time was garbage collection, for 50 MB of 600
    list(APPEND cxx_options "SHELL:--param ggc-min-heapsize=524288")
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${MEGALITH_CUDA_FLAGS}>")
  if(MEGALITH_BUILD_KIND STREQUAL "release")
    target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:${MEGALITH_HARDENING}>")
    target_link_options(${target} PUBLIC -Wl,-z,relro,-z,now)
  endif()
  if(MEGALITH_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MEGALITH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if(MEGALITH_FUZZ)  # so that the fuzz targets see which code an input reaches
      target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
      target_compile_definitions(${target} PRIVATE __SANITIZE_ADDRESS__)  # GCC's way to tell, clang has none before 18
    endif()
    # GCC sees what is not initialized where there is nothing: its bug 105562, in <regex>.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PUBLIC -fsanitize=${MEGALITH_SANITIZE})
  endif()
endfunction()

# With MEGALITH_PRECOMPILED the standard headers that take a compiler longest are parsed once, and eight sources of a
# library are compiled as one; in the quick tier in every build, and all of a test program.
# In the full tier AddressSanitizer's build, which has no precompiled headers either, joins none: it shows a missing include.
function(megalith_precompiled_headers)
  add_library(precompiled OBJECT ${CMAKE_SOURCE_DIR}/cmake/precompiled.cpp)
  megalith_compile_options(precompiled)
  target_compile_options(precompiled PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  target_link_libraries(precompiled PRIVATE fmt::fmt)
  target_precompile_headers(precompiled PRIVATE
    <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <chrono> <condition_variable> <filesystem> <functional> <map> <memory>
    <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <utility> <vector>)
endfunction()
function(megalith_join_sources name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)  # each is an included file
endfunction()
function(megalith_join_tests name)
  if(MEGALITH_TIER STREQUAL "quick")
    megalith_join_sources(${name})
    set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)  # all
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow>)  # of another source's names
  endif()
endfunction()
function(megalith_precompiled name)
  if(TARGET precompiled)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
    target_link_libraries(${name} PRIVATE fmt::fmt)  # whose definitions are those of the headers
    target_precompile_headers(${name} REUSE_FROM precompiled)
  endif()
endfunction()

function(megalith_compile_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# EXACT: multiplications and additions are rounded separately. GCC takes -ffp-contract from a precompiled header and not
# from the command line, so that such a library has none.
function(megalith_library name)
  cmake_parse_arguments(ARG "COLD;EXACT" "" "PUBLIC;PRIVATE;CUDA;EXCLUDE;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES *.cpp *.cu cuda/*.cpp no_cuda/*.cpp)
  endif()
  list(TRANSFORM ARG_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_SOURCES})
  foreach(pattern IN LISTS ARG_EXCLUDE ITEMS "/main\\.cpp$")
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  set(cuda_sources ${sources})
  set(of_cuda "\\.cu$|_cuda\\.cpp$|/nccl_[^/]*\\.cpp$|/cuda/[^/]*$")
  list(FILTER cuda_sources INCLUDE REGEX "${of_cuda}")
  list(FILTER sources EXCLUDE REGEX "${of_cuda}")
  if(MEGALITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "/no_cuda/[^/]*$")
  endif()
  if(NOT sources AND NOT (MEGALITH_CUDA AND cuda_sources))  # headers only
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${ARG_PUBLIC})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)  # it may have objects of CUDA's sources alone
  megalith_compile_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(ARG_COLD)
    megalith_compile_cold(${name})
  endif()
  if(ARG_EXACT)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
  else()
    megalith_precompiled(${name})
  endif()
  if((MEGALITH_PRECOMPILED AND NOT MEGALITH_SANITIZE) OR MEGALITH_TIER STREQUAL "quick")
    megalith_join_sources(${name})
  endif()
  if(MEGALITH_CUDA AND cuda_sources)
    list(APPEND ARG_CUDA megalith_cuda)
    add_library(${name}_cuda OBJECT ${cuda_sources})
    megalith_compile_options(${name}_cuda)
    target_link_libraries(${name}_cuda PRIVATE ${ARG_PUBLIC} ${ARG_CUDA})
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${name}_cuda>)
    list(TRANSFORM ARG_CUDA REPLACE "(.+)" "$<LINK_ONLY:\\1>")
    target_link_libraries(${name} INTERFACE ${ARG_CUDA})
  endif()
endfunction()

# megalith_program(train): the program of the current room, apps/train/main.cpp and the room's library. Tests link the
# object of main.cpp, train_main, to libraries of their own.
function(megalith_program name)
  add_library(${name}_main OBJECT main.cpp)
  megalith_compile_options(${name}_main)
  target_link_libraries(${name}_main PUBLIC apps_${name})
  megalith_compile_cold(${name}_main)
  megalith_precompiled(${name}_main)
  add_executable(${name} $<TARGET_OBJECTS:${name}_main>)
  megalith_compile_options(${name})
  target_link_libraries(${name} PRIVATE apps_${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${MEGALITH_PROGRAM_DIR})
endfunction()

# megalith_test(unit_data LIBRARIES core_data LABELS unit QUICK asan SHARDS 2): one GoogleTest program from every
# *_test.cpp of the current folder (or from SOURCES; ALONE: without tests/support; with the headers that PRECOMPILED, a
# target, has parsed), run by ctest as SHARDS processes (1), which share its tests and write each one's outcome to
# tests/results; tests/run.sh counts these.
# Where it is built: in the quick tier in the builds that QUICK lists (release), those in which its tests can fail. In
# the full tier LABELS decide: `unit` in all but TSAN, `threads` also in TSAN, any other only without sanitizers; with
# MEGALITH_TESTS=CUDA only programs labelled `cuda`, and of these the tests of the CUDA backend, which have cuda or nccl
# in their names. More properties of its ctests may follow PROPERTIES.
function(megalith_test name)
  cmake_parse_arguments(ARG "ALONE" "SHARDS;PRECOMPILED" "LIBRARIES;LABELS;QUICK;SOURCES;PROPERTIES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(ARG_SOURCES)
    set(sources ${ARG_SOURCES})
  endif()
  if(NOT MEGALITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "(^|/)cuda_[^/]*$")
  endif()
  megalith_test_is_built(built "${ARG_LABELS}" "${ARG_QUICK}")
  if(NOT sources OR NOT built)
    return()
  endif()
  if(MEGALITH_SANITIZE)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/tests/support/sanitizers/options.cpp)
  endif()
  add_executable(${name} ${sources})
  megalith_compile_options(${name})
  megalith_test_options(${name})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED tests_precompiled)
  endif()
  target_precompile_headers(${name} REUSE_FROM ${ARG_PRECOMPILED})
  megalith_join_tests(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} fmt::fmt GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT ARG_ALONE)
    target_link_libraries(${name} PRIVATE tests_support)
  endif()
  target_compile_definitions(${name} PRIVATE MEGALITH_SOURCE_DIR="${CMAKE_SOURCE_DIR}" MEGALITH_BIN_DIR="${MEGALITH_PROGRAM_DIR}")

  set(scratch "${CMAKE_BINARY_DIR}/tests/scratch")
  set(results "${CMAKE_BINARY_DIR}/tests/results")
  file(MAKE_DIRECTORY "${scratch}" "${results}")
  set(environment "TEST_TMPDIR=${scratch}" "TMPDIR=${scratch}" "MEGALITH_TIER=${MEGALITH_TIER}")
  if(MEGALITH_TESTS STREQUAL "CUDA")
    list(APPEND environment "GTEST_FILTER=*cuda*:*Cuda*:*nccl*:*Nccl*")
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  list(REMOVE_ITEM ARG_LABELS cuda)
  foreach(shard RANGE 1 ${ARG_SHARDS})
    math(EXPR index "${shard} - 1")
    set(full_name ${MEGALITH_TEST_PREFIX}${name}.${shard})
    add_test(NAME ${full_name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${full_name} PROPERTIES TIMEOUT 1800 LABELS "${ARG_LABELS}" ${ARG_PROPERTIES}
      ENVIRONMENT "${environment};GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index};GTEST_OUTPUT=xml:${results}/${name}.${shard}.xml")
  endforeach()
endfunction()

# Whether this build has a test program of these LABELS and QUICK builds; see megalith_test.
function(megalith_test_is_built variable labels quick)
  set(${variable} TRUE PARENT_SCOPE)
  if(MEGALITH_TIER STREQUAL "quick")
    if(NOT quick)
      set(quick release)
    endif()
    if(NOT MEGALITH_BUILD_KIND IN_LIST quick)
      set(${variable} FALSE PARENT_SCOPE)
    endif()
  elseif(MEGALITH_TESTS STREQUAL "CUDA" AND NOT "cuda" IN_LIST labels)
    set(${variable} FALSE PARENT_SCOPE)
  elseif(MEGALITH_BUILD_KIND STREQUAL "tsan" AND NOT "threads" IN_LIST labels)
    set(${variable} FALSE PARENT_SCOPE)
  elseif(MEGALITH_BUILD_KIND STREQUAL "asan" AND NOT "unit" IN_LIST labels AND NOT "threads" IN_LIST labels)
    set(${variable} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Test sources are compiled fast; what they test, tests/support and tests/reference are compiled as in the product.
function(megalith_test_options name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O0;-U_FORTIFY_SOURCE>" "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>")
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # CMake's flag for it depends on the target's kind
endfunction()
