# The distribution's packages (scripts/setup installs them).
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(libuv REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(openssl REQUIRED IMPORTED_TARGET openssl>=3.0)
pkg_check_modules(seccomp REQUIRED IMPORTED_TARGET libseccomp)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(libcurl libcurl>=7.85) # optional: `reprise pull`
pkg_check_modules(cmocka IMPORTED_TARGET cmocka)

# llhttp: newer systems have libllhttp-dev; Debian 12's node-llhttp ships the C sources, which are
# compiled here in strict mode (version 8 defaults to a lenient mode that lets requests be smuggled).
pkg_check_modules(llhttp_system IMPORTED_TARGET libllhttp)
if(llhttp_system_FOUND)
  add_library(rp_llhttp INTERFACE)
  target_link_libraries(rp_llhttp INTERFACE PkgConfig::llhttp_system)
else()
  find_path(llhttp_source_dir NAMES llhttp.c PATHS /usr/share/llhttp REQUIRED NO_DEFAULT_PATH)
  find_path(llhttp_include NAMES llhttp.h PATHS /usr/share/include/llhttp REQUIRED NO_DEFAULT_PATH)
  add_library(rp_llhttp STATIC ${llhttp_source_dir}/llhttp.c ${llhttp_source_dir}/api.c
              ${llhttp_source_dir}/http.c)
  target_include_directories(rp_llhttp SYSTEM PUBLIC ${llhttp_include})
  target_compile_definitions(rp_llhttp PUBLIC LLHTTP_STRICT_MODE=1)
  target_compile_options(rp_llhttp PRIVATE -w -O2)
endif()
