# The extension module shmtree._core from python/bindings.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module NumPy)
find_package(pybind11 CONFIG REQUIRED)

file(GLOB_RECURSE binding_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/python/bindings/*.cpp ${PROJECT_SOURCE_DIR}/python/bindings/*.h)
if(binding_sources MATCHES "\\.cpp")
  pybind11_add_module(_core MODULE ${binding_sources})
  target_include_directories(_core PRIVATE ${PROJECT_SOURCE_DIR}/python)
  # pybind11's and NumPy's headers are not ours to keep free of warnings.
  target_include_directories(_core SYSTEM PRIVATE ${Python_NumPy_INCLUDE_DIRS})
  target_link_libraries(_core PRIVATE shmtree_options shmtree_api shmtree_replay)
  target_compile_definitions(_core PRIVATE SHMTREE_VERSION="${PROJECT_VERSION}")
  install(TARGETS _core LIBRARY DESTINATION shmtree COMPONENT python)
else()
  message(STATUS "shmtree: python/bindings has no sources yet; the extension is left out")
endif()
