# Whether and for which GPUs the CUDA backend is built. TENSORFOLD_CUDA: AUTO builds it where nvcc is found.
# TENSORFOLD_CUDA_ARCHITECTURES: "native" (the GPUs of this machine; without one, Hopper), or a list such as "80;90a;120".
set(TENSORFOLD_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set(TENSORFOLD_CUDA_ARCHITECTURES native CACHE STRING "GPU architectures: native, or a list such as 80;90a;120")

set(TENSORFOLD_HAS_CUDA OFF)
if(TENSORFOLD_COMPUTE_ONLY OR TENSORFOLD_FUZZ OR TENSORFOLD_SANITIZE OR TENSORFOLD_CUDA STREQUAL "OFF")
  return()
endif()
find_program(TENSORFOLD_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT TENSORFOLD_NVCC)
  if(TENSORFOLD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TENSORFOLD_CUDA is ON and nvcc isn't on PATH. Install the CUDA toolkit or set TENSORFOLD_CUDA=OFF.")
  endif()
  message(STATUS "CUDA backend: not built (no nvcc)")
  return()
endif()

set(architectures "${TENSORFOLD_CUDA_ARCHITECTURES}")
if(architectures STREQUAL "native")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(architectures "")
  if(status EQUAL 0)
    string(REPLACE "\n" ";" capabilities "${capabilities}")
    foreach(capability IN LISTS capabilities)
      string(REPLACE "." "" capability "${capability}")
      list(APPEND architectures "${capability}")
    endforeach()
    list(REMOVE_DUPLICATES architectures)
  endif()
  if(NOT architectures)
    set(architectures 90a)
  endif()
endif()

list(TRANSFORM architectures REPLACE "^90$" "90a")  # Hopper's own instructions are only in "90a"

set(CMAKE_CUDA_COMPILER ${TENSORFOLD_NVCC})
set(CMAKE_CUDA_ARCHITECTURES OFF)  # named below: "90a" needs the long form
enable_language(CUDA)
# CMake 3.25 doesn't look for a standard when it can't build its test program for "native".
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit REQUIRED)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
set(TENSORFOLD_CUDA_OPTIONS -fmad=false --expt-relaxed-constexpr -lineinfo)  # rule 12: fused only where the source says fma
foreach(architecture IN LISTS architectures)
  list(APPEND TENSORFOLD_CUDA_OPTIONS "SHELL:-gencode arch=compute_${architecture},code=sm_${architecture}")
endforeach()
set(TENSORFOLD_HAS_CUDA ON)
message(STATUS "CUDA backend: ${TENSORFOLD_NVCC}, sm_${architectures}")
