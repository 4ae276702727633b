# Writes the source tree's commit into a C++ file, and touches the file only when that changes. Run at every build:
#   cmake -DSOURCE=tree -DOUTPUT=file -P build_commit.cmake
set(commit "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE head RESULT_VARIABLE status
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(status EQUAL 0)
    set(commit "${head}")
    execute_process(COMMAND ${GIT} -C ${SOURCE} diff --quiet HEAD -- src cmake CMakeLists.txt RESULT_VARIABLE status
                    ERROR_QUIET)
    if(NOT status EQUAL 0)
      string(APPEND commit "+")
    endif()
  endif()
endif()
set(text "// Written by cmake/build_commit.cmake.\n#include \"cli/commands.h\"\n\nnamespace tensorfold::cli {\n\nconst char* build_commit() {\n  return \"${commit}\";\n}\n\n}  // namespace tensorfold::cli\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
