# cmake -DBUILD_DIR=.. -DGENERATOR=.. -DCXX=.. -P run.cmake: install, copy the project out of the tree, configure, build, run;
# then the same program with pkg-config's flags alone.
string(RANDOM LENGTH 8 suffix)
if(DEFINED ENV{TMPDIR})
  set(work $ENV{TMPDIR}/sparseloom-consumer-${suffix})
else()
  set(work /tmp/sparseloom-consumer-${suffix})
endif()

# A step that fails ends the test, but never leaves the scratch folder behind.
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    file(REMOVE_RECURSE ${work})
    message(FATAL_ERROR "failed with ${status}: ${ARGV}")
  endif()
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD_DIR} --component cpp --prefix ${work}/prefix)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/CMakeLists.txt ${CMAKE_CURRENT_LIST_DIR}/main.cpp DESTINATION ${work}/source)
step(${CMAKE_COMMAND} -S ${work}/source -B ${work}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
     -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${work}/prefix)
step(${CMAKE_COMMAND} --build ${work}/build)
step(${work}/build/consumer)

# Without CMake, and from another place than the one that it was installed in: what pkg-config says must hold there.
file(RENAME ${work}/prefix ${work}/moved)
file(GLOB_RECURSE package ${work}/moved/*/sparseloom.pc)
cmake_path(GET package PARENT_PATH package_dir)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${package_dir} pkg-config --cflags --libs sparseloom
                OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${flags}" ${work}/prefix stale)
if(NOT stale EQUAL -1)
  message(FATAL_ERROR "pkg-config names the place that it was installed in: ${flags}")
endif()
separate_arguments(flags UNIX_COMMAND "${flags}")
step(${CXX} ${work}/source/main.cpp ${flags} -Wl,-rpath,${package_dir}/.. -o ${work}/by_pkg_config)
step(${work}/by_pkg_config)
file(REMOVE_RECURSE ${work})
