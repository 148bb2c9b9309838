# How each layer, the generated schema and the public library are built.

add_library(shmtree_options INTERFACE)
target_compile_features(shmtree_options INTERFACE cxx_std_20)
target_compile_options(shmtree_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${SHMTREE_WERROR}>:-Werror>)
if(SHMTREE_CRASH_POINTS)
  target_compile_definitions(shmtree_options INTERFACE SHMTREE_CRASH_POINTS=1)
endif()

if(SHMTREE_SANITIZE)
  add_compile_options(-fsanitize=${SHMTREE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SHMTREE_SANITIZE})
  if(SHMTREE_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # gcc warns that TSan does not model fences; ours are paired with atomics that it does model.
    add_compile_options(-Wno-tsan)
  endif()
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ${SHMTREE_LTO})
if(SHMTREE_LTO AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # gcc stops inlining across files once the whole has grown by 40 %. What is left out then changes with every change
  # anywhere, and small messages took a tenth longer when it was an append to a column.
  add_compile_options(--param=inline-unit-growth=60)
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT BUILD_SHARED_LIBS)
  # A shared library chooses what it shows by cmake/exports.map instead, so that headers need no annotations.
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# What is made of one schema. `<target>_columns`: where fields stand in a message, as constants (cmake/SchemaColumns.cmake),
# which the library is built with; it does without Cap'n Proto's. `<target>`: the C++ that capnp generates, a library of its
# own, free of our warnings, which the library is tested against.
function(shmtree_schema target schema)
  set(source ${PROJECT_SOURCE_DIR}/${schema})
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(name ${source} NAME)
  set(out ${PROJECT_BINARY_DIR}/generated/schema)
  file(MAKE_DIRECTORY ${out})
  add_custom_command(
    OUTPUT ${out}/${name}.c++ ${out}/${name}.h
    COMMAND ${CapnpCore_COMPILER} compile -I${CapnpCore_INCLUDE_DIR} -o${CapnpCore_CPP_PLUGIN}:${out}
      --src-prefix=${folder} ${source}
    DEPENDS ${source}
    COMMENT "Generating C++ from ${schema}"
    VERBATIM)
  add_library(${target} STATIC ${out}/${name}.c++ ${out}/${name}.h)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
  target_link_libraries(${target} PUBLIC CapnpCore::capnp)

  set(columns ${PROJECT_SOURCE_DIR}/cmake/SchemaColumns.cmake)
  string(REGEX REPLACE "\\.capnp$" ".columns.h" header ${out}/${name})
  add_custom_command(
    OUTPUT ${header}
    COMMAND ${CMAKE_COMMAND} -D CAPNP=${CapnpCore_COMPILER} -D PLUGIN=${CapnpCore_TEXT_PLUGIN}
      -D INCLUDE=${CapnpCore_INCLUDE_DIR} -D SCHEMA=${source} -D OUT=${header} -P ${columns}
    DEPENDS ${source} ${columns}
    COMMENT "Generating the columns of ${schema}"
    VERBATIM)
  add_library(${target}_columns INTERFACE ${header})
  target_include_directories(${target}_columns INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
endfunction()

# shmtree_layer(<name> [LINK ...] [PRIVATE_LINK ...]): all of src/<name> as the static library shmtree_<name>.
function(shmtree_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK;PRIVATE_LINK")
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp ${PROJECT_SOURCE_DIR}/src/${name}/*.h)
  set(target shmtree_${name})
  add_library(${target} STATIC ${sources})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE shmtree_options ${arg_PRIVATE_LINK})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY SHMTREE_LAYERS ${target})
endfunction()

# The library that users link: the objects of every layer in one archive or shared object.
function(shmtree_public_library)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/shmtree/*.h)
  get_property(layers GLOBAL PROPERTY SHMTREE_LAYERS)
  add_library(shmtree ${headers})
  add_library(shmtree::shmtree ALIAS shmtree)
  foreach(layer IN LISTS layers)
    target_sources(shmtree PRIVATE $<TARGET_OBJECTS:${layer}>)
  endforeach()
  if(BUILD_SHARED_LIBS)
    set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(shmtree PRIVATE LINKER:--version-script=${exports})
    set_property(TARGET shmtree PROPERTY LINK_DEPENDS ${exports})
  endif()
  set_target_properties(shmtree PROPERTIES
    LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_compile_features(shmtree PUBLIC cxx_std_20)
  target_include_directories(shmtree
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(shmtree PUBLIC Threads::Threads PRIVATE $<BUILD_INTERFACE:shmtree_options>)
endfunction()
