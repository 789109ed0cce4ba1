# `cmake --install` and the Debian package (./dev package: CPack). The program and its CUDA module share
# a folder, because the program opens the module beside itself; bin/reprise is a link to it.
include(GNUInstallDirs)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(rp_private_dir lib/reprise)
set(rp_doc_dir share/doc/reprise)
# What is made when it is installed: pages, software bill of materials, the package's changelog.
set(rp_made ${CMAKE_BINARY_DIR}/install_files)

install(TARGETS reprise RUNTIME DESTINATION ${rp_private_dir})
set(rp_module)
if(TARGET reprise_cuda)
  install(TARGETS reprise_cuda LIBRARY DESTINATION ${rp_private_dir}
          PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  set(rp_module --module "\"$<TARGET_FILE:reprise_cuda>\"" --cudart ${CUDAToolkit_VERSION})
endif()
find_program(RP_PYTHON python3)
set(rp_llhttp_header)
if(llhttp_include) # compiled in, not a shared library of the system
  set(rp_llhttp_header --llhttp "\"${llhttp_include}/llhttp.h\"")
endif()
list(JOIN rp_module " " rp_module)
list(JOIN rp_llhttp_header " " rp_llhttp_header)
install(CODE "execute_process(COMMAND_ERROR_IS_FATAL ANY
  COMMAND \"${RP_PYTHON}\" \"${CMAKE_SOURCE_DIR}/scripts/install_files.py\" --program \"$<TARGET_FILE:reprise>\"
    --version ${PROJECT_VERSION} --out \"${rp_made}\" ${rp_module} ${rp_llhttp_header})")

install(FILES ${rp_made}/reprise.1.gz DESTINATION share/man/man1)
install(FILES ${rp_made}/completion.bash DESTINATION share/bash-completion/completions RENAME reprise)
install(FILES ${rp_made}/completion.zsh DESTINATION share/zsh/vendor-completions RENAME _reprise)
install(FILES ${rp_made}/reprise.spdx.json NOTICE DESTINATION ${rp_doc_dir})
install(FILES LICENSE DESTINATION ${rp_doc_dir})
install(DIRECTORY models/demo DESTINATION share/reprise)
install(FILES deploy/systemd/reprise.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/reprise.sysusers DESTINATION lib/sysusers.d RENAME reprise.conf)
install(FILES deploy/systemd/reprise.default DESTINATION /etc/default RENAME reprise)
install(CODE "file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin\")
  file(CREATE_LINK ../lib/reprise/reprise \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin/reprise\" SYMBOLIC)")
# Debian's own files.
install(FILES deploy/debian/copyright ${rp_made}/changelog.gz DESTINATION ${rp_doc_dir})
install(FILES deploy/debian/lintian-overrides DESTINATION share/lintian/overrides RENAME reprise)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME reprise)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the reprise authors <reprise@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serve large language models by replaying captured graphs")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"reprise serves a language model with an HTTP API compatible with OpenAI's. It
captures each step of the model once per batch size as a CUDA graph and then
only replays; the same engine runs on a CPU.

The service is installed disabled, with a small demo model.")
# The libraries' from dpkg-shlibdeps; systemd-sysusers makes the service's user.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# `reprise pull` opens the first, --kv-events-config the second.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64, libzmq5")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | systemd-sysusers, init-system-helpers (>= 1.54)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libcuda1, bash-completion, libedit2")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/postrm;${CMAKE_SOURCE_DIR}/deploy/debian/conffiles")
include(CPack)
