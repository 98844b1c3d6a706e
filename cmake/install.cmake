# Two components: `cpp` is the core library with its headers and package files, `torch` the operators over it. The wheel holds both.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(DEFINED SKBUILD)
  # In the wheel the install prefix is the Python package itself (pyproject.toml, wheel.install-dir), where _library.py looks.
  set(library_dir .)
  set(package_dir cmake)
else()
  set(library_dir ${CMAKE_INSTALL_LIBDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sparseloom)
endif()

install(TARGETS sparseloom EXPORT sparseloom-targets LIBRARY DESTINATION ${library_dir} COMPONENT cpp)
install(DIRECTORY include/sparseloom DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)

install(EXPORT sparseloom-targets NAMESPACE sparseloom:: DESTINATION ${package_dir} COMPONENT cpp)
configure_package_config_file(cmake/sparseloom-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/sparseloom-config-version.cmake
        DESTINATION ${package_dir} COMPONENT cpp)

file(RELATIVE_PATH pc_to_prefix /prefix/${library_dir}/pkgconfig /prefix)
configure_file(cmake/sparseloom.pc.in ${CMAKE_CURRENT_BINARY_DIR}/sparseloom.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparseloom.pc DESTINATION ${library_dir}/pkgconfig COMPONENT cpp)

if(SPARSELOOM_HAVE_TORCH)
  install(TARGETS sparseloom_torch LIBRARY DESTINATION ${library_dir} COMPONENT torch)
endif()
