# Installs the build into a fresh prefix, builds the consumer and the C++ program of the README against that prefix alone,
# and runs both.

set(root ${BUILD_DIR}/consumer_check)
file(REMOVE_RECURSE ${root})
file(READ ${README} readme)
string(FIND "${readme}" "```cpp\n" begin)
if(begin EQUAL -1)
  message(FATAL_ERROR "${README} has no C++ program")
endif()
math(EXPR begin "${begin} + 7")
string(SUBSTRING "${readme}" ${begin} -1 program)
string(FIND "${program}" "```" length)
string(SUBSTRING "${program}" 0 ${length} program)
file(WRITE ${root}/readme.cpp "${program}")

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${root}/prefix --component cpp)
set(flags "")
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} -S ${CONSUMER_DIR} -B ${root}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${root}/prefix -DCMAKE_CXX_FLAGS=${flags}
    -DREADME_PROGRAM=${root}/readme.cpp)
run(${CMAKE_COMMAND} --build ${root}/build)
run(${root}/build/consumer)
run(${root}/build/readme)
