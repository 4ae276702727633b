# Sources named *_avx2.cpp, *_avx512.cpp, *_amx.cpp and *_neon.cpp are compiled for that instruction set alone and left
# out where it doesn't exist. They include intrinsics and our own ISA-namespaced headers only, never the standard
# library's templates: a weak copy of one, compiled with AVX-512, could be the one that the linker keeps for everybody.
set(ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
# GCC 12's own AVX-512 header warns about its _mm512_undefined_ps.
set(ISA_FLAGS_avx512 ${ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND ISA_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(ISA_FLAGS_amx ${ISA_FLAGS_avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
set(ISA_FLAGS_neon "")

# tensorfold_isa_sources(<variable>): drops foreign sources from the list and sets the flags of the others.
function(tensorfold_isa_sources variable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(native neon)
    set(foreign avx2 avx512 amx)
  else()
    set(native avx2 avx512 amx)
    set(foreign neon)
  endif()
  set(sources ${${variable}})
  foreach(isa ${foreign})
    list(FILTER sources EXCLUDE REGEX "_${isa}\\.cpp$")
  endforeach()
  foreach(source ${sources})
    foreach(isa ${native})
      if(source MATCHES "_${isa}\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ISA_FLAGS_${isa}};-O3")
      endif()
    endforeach()
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()
