# xgrammar (Apache 2.0), the token-mask engine behind src/grammar, as a static library compiled from the sources that
# tools/fetch_xgrammar.py put into .cache/xgrammar. Its own build files aren't used: they ask for warnings as errors, link-time
# optimisation and Python. Our flags hold here too (no fast-math, no contraction, the sanitizers), our warnings don't.
set(XGRAMMAR_DIR ${CMAKE_SOURCE_DIR}/.cache/xgrammar)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
# Quick when the pinned sources are there: it compares a stamp.
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/fetch_xgrammar.py RESULT_VARIABLE fetched)
if(NOT fetched EQUAL 0)
  message(FATAL_ERROR "xgrammar's sources aren't in .cache/xgrammar: run tools/install_dependencies.sh")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS tools/fetch_xgrammar.py)

file(GLOB XGRAMMAR_SOURCES ${XGRAMMAR_DIR}/cpp/*.cc ${XGRAMMAR_DIR}/cpp/support/*.cc ${XGRAMMAR_DIR}/cpp/converter_ext/*.cc)
add_library(xgrammar STATIC ${XGRAMMAR_SOURCES} ${CMAKE_SOURCE_DIR}/src/grammar/xgrammar_messages.cpp)
target_include_directories(xgrammar SYSTEM PUBLIC ${XGRAMMAR_DIR}/include ${XGRAMMAR_DIR}/3rdparty/picojson
                                                  ${XGRAMMAR_DIR}/3rdparty/dlpack/include)
# Messages go through our own two functions (src/grammar): what a request says must not reach the log.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                            XGRAMMAR_LOG_CUSTOMIZE=1)
get_property(options TARGET xgrammar PROPERTY COMPILE_OPTIONS)
list(FILTER options EXCLUDE REGEX "^-W")
set_property(TARGET xgrammar PROPERTY COMPILE_OPTIONS ${options} -w)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 EXPORT_COMPILE_COMMANDS OFF)
