# SPARSELOOM_MANYLINUX: what is linked loads on every Linux with glibc 2.28 (manylinux_2_28), whatever this system has.
if(SPARSELOOM_MANYLINUX)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(old_libraries ${CMAKE_BINARY_DIR}/old_libraries)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/old_libraries.py ${old_libraries} COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "sparseloom: linking against glibc 2.28, from ${old_libraries}")
  add_link_options(-L${old_libraries})
  set(old_glibc_sources ${CMAKE_CURRENT_LIST_DIR}/old_glibc.cpp)  # of both shared libraries
endif()
