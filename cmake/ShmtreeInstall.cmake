# Rules for cmake --install: headers, the library, licences, and the files for find_package(shmtree) and pkg-config.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shmtree)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/shmtree DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT cpp FILES_MATCHING PATTERN "*.h")
install(TARGETS shmtree EXPORT shmtreeTargets COMPONENT cpp INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT shmtreeTargets NAMESPACE shmtree:: DESTINATION ${package_dir} COMPONENT cpp)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/shmtreeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shmtreeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shmtreeConfigVersion.cmake
  VERSION ${SHMTREE_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shmtreeConfig.cmake ${PROJECT_BINARY_DIR}/shmtreeConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/cmake/FindCapnpCore.cmake
        DESTINATION ${package_dir} COMPONENT cpp)

# The library contains code from the headers of Cap'n Proto.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/licenses/capnproto.txt
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/shmtree COMPONENT cpp)

# Relative to the .pc file, so that an installed copy can be moved.
file(RELATIVE_PATH SHMTREE_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
if(BUILD_SHARED_LIBS)
  set(SHMTREE_PC_REQUIRES Requires.private)
else()
  set(SHMTREE_PC_REQUIRES Requires)
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/shmtree.pc.in ${PROJECT_BINARY_DIR}/shmtree.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/shmtree.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)
