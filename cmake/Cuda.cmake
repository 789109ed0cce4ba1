# The CUDA module: every <folder>/*_cuda.c and *_cuda.cu, linked with the runtime into one library that
# `reprise` opens at run time (libreprise_cuda.so, beside the binary). Built wherever nvcc is found;
# -DRP_CUDA=OFF leaves it out. The sanitizer builds leave it out: they run on the CPU backend.
option(RP_CUDA "the CUDA module, where nvcc is found" ON)
set(RP_CUDA_ARCHITECTURES "90a-real" CACHE STRING "what the kernels are compiled for")

find_program(RP_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT RP_CUDA OR RP_ASAN OR RP_TSAN OR NOT RP_NVCC)
  message(STATUS "CUDA: not built (RP_CUDA=${RP_CUDA}, nvcc: ${RP_NVCC})")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${RP_NVCC})
set(CMAKE_CUDA_ARCHITECTURES ${RP_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${RP_CUDA_ARCHITECTURES}")

file(GLOB rp_cuda_sources CONFIGURE_DEPENDS */*_cuda.c */*_cuda.cu */*/*_cuda.c */*/*_cuda.cu)
list(FILTER rp_cuda_sources EXCLUDE REGEX "^${CMAKE_SOURCE_DIR}/(tests|bench|build|tools)/")

# The sources that NVRTC compiles with a mask program, as texts.
file(GLOB rp_program_sources CONFIGURE_DEPENDS attention/*.h attention/*.cuh attention/*/*.h attention/*/*.cuh device/*.h device/*.cuh base/*.h kvcache/*.h)
set(rp_program_texts ${CMAKE_BINARY_DIR}/generated/attention_program_texts.c)
add_custom_command(OUTPUT ${rp_program_texts}
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} "-DSOURCE=attention/program/attention_program.cuh\;device/nvrtc_prelude.cuh"
    -DNAME=rp_attention_program_texts -DHEADER=attention/program/attention_program_texts.h -DOUT=${rp_program_texts}
    -P ${CMAKE_SOURCE_DIR}/cmake/embed_sources.cmake
  DEPENDS ${rp_program_sources} ${CMAKE_SOURCE_DIR}/cmake/embed_sources.cmake VERBATIM)

# The kernels and their host code, for the module and for the tests on a GPU.
add_library(rp_cuda STATIC ${rp_cuda_sources} ${rp_program_texts})
target_include_directories(rp_cuda PUBLIC ${CMAKE_SOURCE_DIR})
target_include_directories(rp_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(rp_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-fno-strict-aliasing --expt-relaxed-constexpr
    -Werror=all-warnings --compress-mode=size>)
# Where Hopper's kernels have no bodies, nobody calls what these were made of.
set(rp_cuda_others ${RP_CUDA_ARCHITECTURES})
list(FILTER rp_cuda_others EXCLUDE REGEX "^90a")
if(rp_cuda_others)
  target_compile_options(rp_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177>)
endif()
set_target_properties(rp_cuda PROPERTIES C_VISIBILITY_PRESET hidden
                      CUDA_VISIBILITY_PRESET hidden)
target_link_libraries(rp_cuda PUBLIC rp_base CUDA::cudart_static)

# The module exports rp_backend_cuda_table alone; the few plain functions that it shares with the program
# are linked into it a second time.
add_library(reprise_cuda SHARED $<TARGET_OBJECTS:rp_cuda>)
target_link_libraries(reprise_cuda PRIVATE CUDA::cudart_static rp_backend rp_attention rp_device rp_kvcache rp_quant rp_base)
target_link_options(reprise_cuda PRIVATE
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/cuda_module.map)
set_target_properties(reprise_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
