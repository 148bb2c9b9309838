# Builds the library shmtree_schema from the C++ that Cap'n Proto's compiler generates, without our warning options.
#
# A build needs Cap'n Proto's compiler and library. If they are missing, the message names the packages to install.

find_package(CapnpCore 0.9 QUIET)
if(NOT CapnpCore_FOUND OR NOT CapnpCore_COMPILER OR NOT CapnpCore_CPP_PLUGIN)
  message(FATAL_ERROR "shmtree needs Cap'n Proto 0.9 or later, with its programs capnp and capnpc-c++: install "
    "capnproto and libcapnp-dev (Debian, Ubuntu), capnproto (Homebrew, conda), or set CMAKE_PREFIX_PATH to where it is")
endif()

execute_process(COMMAND ${CapnpCore_COMPILER} --version OUTPUT_VARIABLE compiler_version)
string(REGEX MATCH "[0-9.]+[0-9]" compiler_version "${compiler_version}")
if(NOT compiler_version STREQUAL CapnpCore_VERSION)
  message(FATAL_ERROR "shmtree needs one version of Cap'n Proto: ${CapnpCore_COMPILER} is ${compiler_version}, and "
    "${CapnpCore_INCLUDE_DIR} has the headers of ${CapnpCore_VERSION}. Remove one, or set CapnpCore_COMPILER, "
    "CapnpCore_CPP_PLUGIN, CapnpCore_INCLUDE_DIR, CapnpCore_LIBRARY and CapnpCore_KJ_LIBRARY")
endif()

# The comparison operators of its older headers are ambiguous for compilers that follow P2468.
if(CapnpCore_VERSION VERSION_LESS 1.0.1
   AND ((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
        OR (CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 16)))
  message(FATAL_ERROR "Cap'n Proto ${CapnpCore_VERSION} does not compile as C++20 with ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION}: use Cap'n Proto 1.0.1 or later, or GCC before 13, or Clang before 16")
endif()

set(schema ${PROJECT_SOURCE_DIR}/schema/shmtree.capnp)
set(generated ${PROJECT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${generated}/schema)

add_custom_command(
  OUTPUT ${generated}/schema/shmtree.capnp.c++ ${generated}/schema/shmtree.capnp.h
  COMMAND ${CapnpCore_COMPILER} compile -I${CapnpCore_INCLUDE_DIR} -o${CapnpCore_CPP_PLUGIN}:${generated}/schema
    --src-prefix=${PROJECT_SOURCE_DIR}/schema ${schema}
  DEPENDS ${schema}
  COMMENT "Generating C++ from the schema"
  VERBATIM)
add_library(shmtree_schema STATIC ${generated}/schema/shmtree.capnp.c++ ${generated}/schema/shmtree.capnp.h)
target_compile_features(shmtree_schema PUBLIC cxx_std_20)
target_compile_options(shmtree_schema PRIVATE -w)
target_include_directories(shmtree_schema SYSTEM PUBLIC ${generated})
target_link_libraries(shmtree_schema PUBLIC CapnpCore::capnp)
set_property(GLOBAL APPEND PROPERTY SHMTREE_LAYERS shmtree_schema)

# Generates sources and compiles nothing else, for tools such as clang-tidy.
add_custom_target(shmtree_generated)
add_dependencies(shmtree_generated shmtree_schema)

# shmtree_messages(<target> <schema>): generates C++ from a Cap'n Proto schema and compiles it to a static library.
function(shmtree_messages target schema)
  get_filename_component(file ${schema} NAME)
  get_filename_component(folder ${schema} DIRECTORY)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/${target})
  file(MAKE_DIRECTORY ${made})
  add_custom_command(
    OUTPUT ${made}/${file}.c++ ${made}/${file}.h
    COMMAND ${CapnpCore_COMPILER} compile -I${CapnpCore_INCLUDE_DIR} -o${CapnpCore_CPP_PLUGIN}:${made}
      --src-prefix=${folder} ${schema}
    DEPENDS ${schema}
    VERBATIM)
  add_library(${target} STATIC ${made}/${file}.c++ ${made}/${file}.h)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC ${made})
  target_link_libraries(${target} PUBLIC CapnpCore::capnp)
  add_dependencies(shmtree_generated ${target})
endfunction()
