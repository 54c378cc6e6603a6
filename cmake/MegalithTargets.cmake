# One library per folder: megalith_library(core_ops PUBLIC core_tensor) compiles every *.cpp of the current folder
# (never of a subfolder) and links to the left only. With MEGALITH_CUDA also every *.cu; without it, the files named
# cuda_*.cpp and *_cuda.cpp are left out.
# Designated initializers leave fields at their defaults on purpose.
set(MEGALITH_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-missing-field-initializers)
# Places in messages are the repository's, also where ccache makes a source's path relative to the build folder.
file(RELATIVE_PATH build_to_source ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
set(MEGALITH_FLAGS -march=x86-64-v3 -ffile-prefix-map=${CMAKE_SOURCE_DIR}/= -ffile-prefix-map=${build_to_source}/=)
include(MegalithBackendLabel)

function(megalith_compile_options target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  set(cxx_options ${MEGALITH_WARNINGS} ${MEGALITH_FLAGS} $<$<BOOL:${MEGALITH_WERROR}>:-Werror>)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")
  if(MEGALITH_CUDA)
    target_compile_definitions(${target} PUBLIC MEGALITH_CUDA=1)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${MEGALITH_CUDA_FLAGS}>")
  endif()
  if(MEGALITH_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MEGALITH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    # GCC sees what is not initialized where there is nothing: its bug 105562, in <regex>.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PUBLIC -fsanitize=${MEGALITH_SANITIZE})
  endif()
endfunction()

# Adds the current folder's *.cu files to the list variable, or takes the CUDA backend's *.cpp files out of it.
function(megalith_cuda_sources list_name)
  set(sources ${${list_name}})
  if(MEGALITH_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda_[^/]*\\.cpp$|_cuda\\.cpp$|/nccl_[^/]*\\.cpp$")
  endif()
  set(${list_name} ${sources} PARENT_SCOPE)
endfunction()

function(megalith_library name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  megalith_cuda_sources(sources)
  foreach(pattern IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  if(NOT sources)  # headers only, or a room whose sources come later
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${ARG_PUBLIC})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  megalith_compile_options(${name})
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# megalith_test(unit_data LIBRARIES core_data LABELS unit): one GoogleTest program from every *_test.cpp of the current
# folder (or from SOURCES; ALONE: without tests/support); each TEST is a ctest of its own, so that the number of tests
# run is visible. Labels decide which builds have the test: `unit` all but TSAN, `threads` also TSAN, any other only
# builds without sanitizers; with MEGALITH_TESTS=CUDA only programs labelled `cuda`. Tests of the CUDA backend have cuda
# in their names, of a TEST or a case; see megalith_test_properties.
function(megalith_test name)
  cmake_parse_arguments(ARG "ALONE" "" "LIBRARIES;LABELS;SOURCES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  if(ARG_SOURCES)
    set(sources ${ARG_SOURCES})
  endif()
  if(NOT MEGALITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "(^|/)cuda_[^/]*$")
  endif()
  if(NOT sources OR (MEGALITH_TESTS STREQUAL "CUDA" AND NOT "cuda" IN_LIST ARG_LABELS))
    return()
  endif()
  if(MEGALITH_SANITIZE MATCHES "thread" AND NOT "threads" IN_LIST ARG_LABELS)
    return()
  elseif(MEGALITH_SANITIZE AND NOT "unit" IN_LIST ARG_LABELS AND NOT "threads" IN_LIST ARG_LABELS)
    return()
  endif()
  if(MEGALITH_SANITIZE)
    list(APPEND sources ${CMAKE_SOURCE_DIR}/tests/support/sanitizers/options.cpp)
  endif()
  add_executable(${name} ${sources})
  megalith_compile_options(${name})
  megalith_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM tests_precompiled)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} fmt::fmt GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT ARG_ALONE)
    target_link_libraries(${name} PRIVATE tests_support)
  endif()
  target_compile_definitions(${name} PRIVATE MEGALITH_SOURCE_DIR="${CMAKE_SOURCE_DIR}" MEGALITH_BIN_DIR="${MEGALITH_PROGRAM_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_PREFIX "${MEGALITH_TEST_PREFIX}" TEST_LIST ${name}_list)
  megalith_test_properties(${name}_list ${ARG_LABELS})
endfunction()

# Test sources are compiled fast; what they test, tests/support and tests/reference are compiled as in the product.
function(megalith_test_options name)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O0>" "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>")
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # CMake's flag for it depends on the target's kind
endfunction()

# Labels and the place for temporary files of the tests in the list variable that gtest_discover_tests made: its own
# PROPERTIES would flatten a list of several values.
function(megalith_test_properties list_name)
  string(REPLACE "," "-" labels "${ARGN};${MEGALITH_SANITIZE}")
  list(REMOVE_ITEM labels cuda "")  # the program's; its tests have their own
  set(scratch "${CMAKE_BINARY_DIR}/tests/scratch")
  file(MAKE_DIRECTORY "${scratch}")
  set(properties_file "${CMAKE_CURRENT_BINARY_DIR}/${list_name}_properties.cmake")
  file(WRITE "${properties_file}" "set(MEGALITH_CUDA ${MEGALITH_CUDA})
include(${CMAKE_SOURCE_DIR}/cmake/MegalithBackendLabel.cmake)
foreach(test IN LISTS ${list_name})
  megalith_backend_label(backend \"\${test}\")
  set_tests_properties(\"\${test}\" PROPERTIES TIMEOUT 600 LABELS \"${labels};\${backend}\"
    ENVIRONMENT \"TEST_TMPDIR=${scratch};TMPDIR=${scratch}\")
endforeach()
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties_file}")
endfunction()
