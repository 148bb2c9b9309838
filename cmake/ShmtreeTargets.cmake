# Functions that build the layers and the public library.

add_library(shmtree_options INTERFACE)
target_compile_features(shmtree_options INTERFACE cxx_std_20)
target_compile_options(shmtree_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${SHMTREE_WERROR}>:-Werror>)
if(SHMTREE_CRASH_POINTS)
  target_compile_definitions(shmtree_options INTERFACE SHMTREE_CRASH_POINTS=1 SHMTREE_DCHECKS=1)
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
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  if(SHMTREE_LTO)
    # gcc stops inlining across files when the program has grown by 40 %. Any change can then affect which calls stay
    # out of line. When an append to a column stayed out of line, small
    # messages took 10 % longer.
    add_compile_options(--param=inline-unit-growth=60)
  elseif(SHMTREE_UNITY)
    # The same limit applies to eight sources in one unit; with it, decoding took 8 % more instructions.
    add_compile_options(--param=inline-unit-growth=100)
  endif()
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT BUILD_SHARED_LIBS)
  # A shared library exports the symbols in cmake/exports.map instead, so that headers need no annotations.
  set(CMAKE_CXX_VISIBILITY_PRESET hidden)
  set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# shmtree_unity(<target> <sources>...): compiles up to eight sources of a folder as one, if SHMTREE_UNITY is on. Headers
# take half of the compile time of a source. Sources of a folder share a namespace, so their local names must differ.
function(shmtree_unity target)
  if(NOT SHMTREE_UNITY)
    return()
  endif()
  list(FILTER ARGN INCLUDE REGEX "\\.cpp$")
  list(SORT ARGN)
  set(last "")
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    if(NOT folder STREQUAL last)
      set(last ${folder})
      set(index 0)
    endif()
    cmake_path(GET folder FILENAME name)
    math(EXPR batch "${index} / 8")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${name}_${batch})
    math(EXPR index "${index} + 1")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# shmtree_layer(<name> [LINK ...]): builds src/<name>, including its subfolders, as the static library shmtree_<name>.
function(shmtree_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp ${PROJECT_SOURCE_DIR}/src/${name}/*.h)
  set(target shmtree_${name})
  add_library(${target} STATIC ${sources})
  shmtree_unity(${target} ${sources})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE shmtree_options)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY SHMTREE_LAYERS ${target})
endfunction()

# Builds the library that users link: the objects of every layer in one archive or shared object.
function(shmtree_public_library)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/shmtree/*.h)
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
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(shmtree PUBLIC Threads::Threads PRIVATE CapnpCore::capnp $<BUILD_INTERFACE:shmtree_options>)
  # For programs that include <shmtree/capnp.h>; an installed copy defines it in shmtreeConfig.cmake.
  add_library(shmtree_capnp INTERFACE)
  add_library(shmtree::capnp ALIAS shmtree_capnp)
  target_link_libraries(shmtree_capnp INTERFACE shmtree CapnpCore::capnp)
endfunction()
