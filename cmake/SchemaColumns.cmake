# Writes where the fields of a schema stand in a message as C++ constants, from what capnp itself says of it:
#
#   cmake -D CAPNP=<capnp> -D PLUGIN=<capnpc-capnp> -D INCLUDE=<where capnp/c++.capnp is> -D SCHEMA=<x.capnp>
#     -D OUT=<x.h> -P SchemaColumns.cmake

cmake_minimum_required(VERSION 3.25)

get_filename_component(folder ${SCHEMA} DIRECTORY)
execute_process(
  COMMAND ${CAPNP} compile -I${INCLUDE} -o${PLUGIN} --src-prefix=${folder} ${SCHEMA}
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "" text "${text}")
string(REGEX REPLACE "[[]|]" "|" text "${text}")  # lists of CMake's do not end between brackets
string(REPLACE "\n" ";" lines "${text}")

set(structs "")
set(columns "")
foreach(line IN LISTS lines)
  if(line MATCHES "^struct ([A-Za-z]+) .*# ([0-9]+) bytes, ([0-9]+) ptrs")
    math(EXPR words "${CMAKE_MATCH_2} / 8")
    string(APPEND structs "struct ${CMAKE_MATCH_1} {\n  enum : unsigned {\n    kWords = ${words},\n    kPointers = ${CMAKE_MATCH_3},\n")
  elseif(line MATCHES "^}")
    string(APPEND structs "  };\n};\n")
  elseif(line MATCHES "^  const ([A-Za-z]+) .* = ([0-9]+)$")
    string(APPEND structs "    ${CMAKE_MATCH_1} = ${CMAKE_MATCH_2},\n")
  elseif(line MATCHES "^  ([A-Za-z]+) @[0-9]+ :.*# bits.([0-9]+),")
    string(APPEND structs "    ${CMAKE_MATCH_1} = ${CMAKE_MATCH_2},\n")
  elseif(line MATCHES "^  ([A-Za-z]+) @[0-9]+ :Data +# ptr.([0-9]+)")
    string(APPEND columns "inline constexpr Segment::Column ${CMAKE_MATCH_1}{${CMAKE_MATCH_2}, Segment::kBytes, 0};\n")
  elseif(line MATCHES "^  ([A-Za-z]+) @[0-9]+ :List\\((Int64|UInt64|Float64)\\) +# ptr.([0-9]+)")
    string(APPEND columns "inline constexpr Segment::Column ${CMAKE_MATCH_1}{${CMAKE_MATCH_3}, Segment::kWords, 1};\n")
  elseif(line MATCHES "^  ([A-Za-z]+) @[0-9]+ :List\\(([A-Za-z]+)\\) +# ptr.([0-9]+)")
    string(APPEND columns
      "inline constexpr Segment::Column ${CMAKE_MATCH_1}{${CMAKE_MATCH_3}, Segment::kStructs, ${CMAKE_MATCH_2}::kWords};\n")
  elseif(NOT line MATCHES "^(#.*|@.*|\\$.*|)$")
    message(FATAL_ERROR "${SCHEMA}: nothing is known to be made of: ${line}")
  endif()
endforeach()

file(WRITE ${OUT} "// Made of schema/shmtree.capnp by cmake/SchemaColumns.cmake: fields of structs at bits, columns at pointers.
#pragma once

#include \"format/segment.h\"

// NOLINTBEGIN(readability-identifier-naming): the schema's names
namespace shmtree::format::schema {

${structs}
${columns}
}  // namespace shmtree::format::schema
// NOLINTEND(readability-identifier-naming)
")
