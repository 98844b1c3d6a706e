# cmake -DBUILD_DIR=.. -DGENERATOR=.. -DCXX=.. -P run.cmake: install, copy the project out of the tree, configure, build, run.
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
file(REMOVE_RECURSE ${work})
