# Two components: `cpp` is the C++ library with its package files, `torch` the one shared object the wheel holds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS sparseloom EXPORT sparseloom-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY include/sparseloom DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sparseloom)
install(EXPORT sparseloom-targets NAMESPACE sparseloom:: DESTINATION ${package_dir} COMPONENT cpp)
configure_package_config_file(cmake/sparseloom-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config-version.cmake
        DESTINATION ${package_dir} COMPONENT cpp)

file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/sparseloom.pc.in ${CMAKE_CURRENT_BINARY_DIR}/sparseloom.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparseloom.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)

if(SPARSELOOM_HAVE_TORCH)
  # In the wheel the install prefix is the Python package itself (pyproject.toml, wheel.install-dir).
  if(DEFINED SKBUILD)
    install(TARGETS sparseloom_torch LIBRARY DESTINATION . COMPONENT torch)
  else()
    install(TARGETS sparseloom_torch LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch)
  endif()
endif()
