# cmake -DCOMMAND=... -DEXPECTED_CODE=N -DEXPECTED_TEXT=... -P expect_failure.cmake: fails unless the command ends with
# that exit code and says that text. A command that ends with 77 was skipped: ctest sees it by "skipped:".
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if("${code}" STREQUAL "77")
  return()
endif()
if(NOT "${code}" STREQUAL "${EXPECTED_CODE}")
  message(FATAL_ERROR "expected exit code ${EXPECTED_CODE}, got ${code}")
endif()
# A rank that crashes after another one has recorded the code; PMIx's own crash is mpiexec's.
if(output MATCHES "Segmentation fault" AND NOT output MATCHES "PMIx_server_finalize")
  message(FATAL_ERROR "expected no crash of a rank")
endif()
string(FIND "${output}" "${EXPECTED_TEXT}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "expected the text: ${EXPECTED_TEXT}")
endif()
