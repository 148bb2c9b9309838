# cmake --install: headers, the library and a package that find_package(shmtree) finds.

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shmtree)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/shmtree DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT cpp FILES_MATCHING PATTERN "*.h")
install(TARGETS shmtree EXPORT shmtreeTargets COMPONENT cpp)
install(EXPORT shmtreeTargets NAMESPACE shmtree:: DESTINATION ${package_dir} COMPONENT cpp)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/shmtreeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shmtreeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shmtreeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shmtreeConfig.cmake ${PROJECT_BINARY_DIR}/shmtreeConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT cpp)
