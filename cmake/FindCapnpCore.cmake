# Finds Cap'n Proto's core: the target CapnpCore::capnp, and the programs CapnpCore_COMPILER and CapnpCore_CPP_PLUGIN.
# Replaces Cap'n Proto's CapnProtoConfig.cmake: Debian's version requires OpenSSL and libatomic, which the core does not
# use, and searches for the compiler in a folder that does not exist.

include(FindPackageHandleStandardArgs)

find_path(CapnpCore_INCLUDE_DIR capnp/message.h)
find_library(CapnpCore_LIBRARY capnp)
find_library(CapnpCore_KJ_LIBRARY kj)
find_program(CapnpCore_COMPILER capnp)
find_program(CapnpCore_CPP_PLUGIN capnpc-c++)
mark_as_advanced(CapnpCore_INCLUDE_DIR CapnpCore_LIBRARY CapnpCore_KJ_LIBRARY CapnpCore_COMPILER CapnpCore_CPP_PLUGIN)

if(CapnpCore_INCLUDE_DIR)
  file(STRINGS ${CapnpCore_INCLUDE_DIR}/capnp/common.h versions REGEX "#define CAPNP_VERSION_(MAJOR|MINOR|MICRO) [0-9]+")
  string(REGEX MATCHALL "[0-9]+" versions "${versions}")
  list(JOIN versions "." CapnpCore_VERSION)
endif()

find_package_handle_standard_args(CapnpCore
  REQUIRED_VARS CapnpCore_LIBRARY CapnpCore_KJ_LIBRARY CapnpCore_INCLUDE_DIR
  VERSION_VAR CapnpCore_VERSION)

if(CapnpCore_FOUND AND NOT TARGET CapnpCore::capnp)
  find_package(Threads REQUIRED)
  add_library(CapnpCore::kj UNKNOWN IMPORTED)
  set_target_properties(CapnpCore::kj PROPERTIES
    IMPORTED_LOCATION ${CapnpCore_KJ_LIBRARY}
    INTERFACE_LINK_LIBRARIES Threads::Threads)
  add_library(CapnpCore::capnp UNKNOWN IMPORTED)
  set_target_properties(CapnpCore::capnp PROPERTIES
    IMPORTED_LOCATION ${CapnpCore_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${CapnpCore_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES CapnpCore::kj)
endif()
