# A toolchain for wheels that run on older systems: zig's clang with the glibc of 2018, whose C++ library goes into the
# extension. `./dev wheels` names zig, which is a package of Python's, in SHMTREE_ZIG.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_HOST_SYSTEM_PROCESSOR})
set(CMAKE_C_COMPILER $ENV{SHMTREE_ZIG} cc -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_CXX_COMPILER $ENV{SHMTREE_ZIG} c++ -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28)
