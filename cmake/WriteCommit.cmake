# cmake -DSOURCE=... -DOUTPUT=... -DVERSION=... -P WriteCommit.cmake
# Writes the header with version and commit; an unchanged one keeps its time stamp, so that nothing is compiled again.
# In an archive without git the commit is what `git archive` put into cmake/commit.txt.
set(commit "")
if(EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git -C "${SOURCE}" rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND git --no-optional-locks -C "${SOURCE}" diff --quiet HEAD --
                  RESULT_VARIABLE differs OUTPUT_QUIET ERROR_QUIET)
  if(commit AND differs EQUAL 1)
    string(APPEND commit "-dirty")
  endif()
endif()
if(NOT commit AND EXISTS "${SOURCE}/cmake/commit.txt")
  file(STRINGS "${SOURCE}/cmake/commit.txt" commit LIMIT_COUNT 1)
  if(commit MATCHES "^[0-9a-f]+$")
    string(SUBSTRING "${commit}" 0 12 commit)
  else()
    set(commit "")
  endif()
endif()
if(NOT commit)
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#define MEGALITH_VERSION \"${VERSION}\"\n#define MEGALITH_COMMIT \"${commit}\"\n" @ONLY)
