# CUDA kernels compiled for the CPU, where on_host/cuda_runtime.h stands for CUDA's header of that name: so they run without a GPU. A
# program of its own over the shared library, because the objects hold functions of the same names that nvcc made. Of the sanitizers,
# ThreadSanitizer alone is told of the fibers that run a kernel's threads.
if((NOT SPARSELOOM_SANITIZE OR SPARSELOOM_SANITIZE STREQUAL "thread") AND (NOT SPARSELOOM_TEST_ROOMS OR "on_host" IN_LIST SPARSELOOM_TEST_ROOMS))
  file(GLOB kernels_on_host CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/shared/sparsify/*.cu)
  file(GLOB tests_on_host CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/on_host/*.cpp)
  set_source_files_properties(${kernels_on_host} PROPERTIES LANGUAGE CXX)
  add_executable(sparseloom_tests_on_host ${kernels_on_host} ${tests_on_host})
  target_include_directories(sparseloom_tests_on_host PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/on_host ${CMAKE_CURRENT_SOURCE_DIR}
                             ${PROJECT_SOURCE_DIR}/src)
  # Fibers return by longjmp to stacks that a fortified one does not know.
  target_compile_options(sparseloom_tests_on_host PRIVATE -O2 -Wno-unknown-pragmas -U_FORTIFY_SOURCE)
  target_link_libraries(sparseloom_tests_on_host PRIVATE sparseloom GTest::gtest_main Threads::Threads)
  gtest_discover_tests(sparseloom_tests_on_host DISCOVERY_TIMEOUT 300)
endif()
