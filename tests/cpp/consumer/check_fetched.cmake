# Builds a project that fetches the sources of shmtree (fetched/CMakeLists.txt, which checks its own settings), runs its
# program, and installs it. Only the program must be installed.

cmake_minimum_required(VERSION 3.25)

set(root ${BUILD_DIR}/fetched_check)
file(REMOVE_RECURSE ${root}/prefix)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# --fresh, because an entry of an earlier cache would not be new. Without optimisation, because only the link matters.
run(${CMAKE_COMMAND} --fresh -S ${CONSUMER_DIR}/fetched -B ${root}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DSHMTREE_SOURCES=${SOURCES})
run(${CMAKE_COMMAND} --build ${root}/build --target consumer)
run(${root}/build/consumer)
run(${CMAKE_COMMAND} --install ${root}/build --prefix ${root}/prefix)
file(GLOB_RECURSE installed RELATIVE ${root}/prefix ${root}/prefix/*)
if(NOT installed STREQUAL "bin/consumer")
  message(FATAL_ERROR "the project installs one program, and got ${installed}")
endif()
