# Flags that every folder shares, as one interface library.
add_library(rp_flags INTERFACE)
target_compile_definitions(rp_flags INTERFACE _GNU_SOURCE LLHTTP_STRICT_MODE=1
                           RP_VERSION="${PROJECT_VERSION}")
# C alone: nvcc has flags of its own (cmake/Cuda.cmake).
set(rp_c_flags
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
  -Wwrite-strings -Wcast-align -Wundef -fno-common -fstack-protector-strong
  # Results must not depend on how the compiler contracts a*b+c.
  -ffp-contract=off)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # gcc 12 reports this wrongly for out-parameters of inlined calls that return a status.
  list(APPEND rp_c_flags -Wno-maybe-uninitialized)
endif()
if(RP_WERROR)
  list(APPEND rp_c_flags -Werror)
endif()
target_compile_options(rp_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${rp_c_flags}>")
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(rp_flags INTERFACE RP_DEBUG=1)
else()
  target_compile_definitions(rp_flags INTERFACE RP_DEBUG=0)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT RP_ASAN AND NOT RP_TSAN)
  # Hardening (tests/cli/test_hardening.py reads it back from the program). Level 3 of fortify needs
  # gcc 12 or clang 9 with glibc 2.34; older ones fall back to 2 by themselves.
  target_compile_definitions(rp_flags INTERFACE _FORTIFY_SOURCE=3)
  include(CheckCCompilerFlag)
  foreach(flag -fstack-clash-protection -fcf-protection=full)
    string(MAKE_C_IDENTIFIER "rp_has${flag}" has_flag)
    check_c_compiler_flag(${flag} ${has_flag})
    if(${has_flag})
      target_compile_options(rp_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${flag}>")
    endif()
  endforeach()
  target_link_options(rp_flags INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)
endif()
if(RP_FUZZ AND NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "RP_FUZZ needs clang: cmake --preset fuzz")
endif()
if(RP_ASAN)
  set(rp_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(RP_FUZZ)
  set(rp_sanitize -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(RP_TSAN)
  set(rp_sanitize -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(rp_sanitize)
  target_compile_options(rp_flags INTERFACE ${rp_sanitize} -g)
  target_link_options(rp_flags INTERFACE ${rp_sanitize})
endif()
