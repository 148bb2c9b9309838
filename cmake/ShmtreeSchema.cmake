# What only tests want of the schema: the C++ that capnp generates, which the library is tested against, as the library
# `shmtree_schema`, free of our warnings; and that src/format/schema_columns.h, which the library is built with, says
# what the schema says. The target `schema_columns` writes that file anew.

find_package(CapnpCore 0.9 REQUIRED)
if(NOT CapnpCore_COMPILER OR NOT CapnpCore_CPP_PLUGIN OR NOT CapnpCore_TEXT_PLUGIN)
  message(FATAL_ERROR "shmtree: Cap'n Proto's programs capnp, capnpc-c++ and capnpc-capnp are needed (Debian: capnproto)")
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

set(columns ${PROJECT_SOURCE_DIR}/src/format/schema_columns.h)
set(script ${PROJECT_SOURCE_DIR}/cmake/SchemaColumns.cmake)
set(write_columns ${CMAKE_COMMAND} -D CAPNP=${CapnpCore_COMPILER} -D PLUGIN=${CapnpCore_TEXT_PLUGIN}
  -D INCLUDE=${CapnpCore_INCLUDE_DIR} -D SCHEMA=${schema})
add_custom_command(
  OUTPUT ${generated}/columns_are_those_of_the_schema
  COMMAND ${write_columns} -D OUT=${generated}/schema_columns.h -P ${script}
  COMMAND ${CMAKE_COMMAND} -E compare_files ${generated}/schema_columns.h ${columns}
  COMMAND ${CMAKE_COMMAND} -E touch ${generated}/columns_are_those_of_the_schema
  DEPENDS ${schema} ${script} ${columns}
  COMMENT "Comparing src/format/schema_columns.h with the schema (the target schema_columns writes it anew)"
  VERBATIM)
add_custom_target(schema_columns_check DEPENDS ${generated}/columns_are_those_of_the_schema)
add_dependencies(shmtree_schema schema_columns_check)
add_custom_target(schema_columns
  COMMAND ${write_columns} -D OUT=${columns} -P ${script}
  VERBATIM)
