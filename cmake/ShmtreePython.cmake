# Builds the extension module shmtree._core from python/bindings.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module NumPy)
find_package(pybind11 CONFIG REQUIRED)

file(GLOB_RECURSE binding_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/python/bindings/*.cpp ${PROJECT_SOURCE_DIR}/python/bindings/*.h)
if(binding_sources MATCHES "\\.cpp")
  pybind11_add_module(_core MODULE ${binding_sources})
  shmtree_unity(_core ${binding_sources})
  # module.cpp defines NumPy's function table, which the other sources only refer to.
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/python/bindings/module.cpp PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  set(docstrings ${PROJECT_BINARY_DIR}/generated/bindings/docstrings.inc)
  set(stub ${PROJECT_SOURCE_DIR}/python/shmtree/_core.pyi)
  add_custom_command(
    OUTPUT ${docstrings}
    COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/docstring_table.py ${stub} ${docstrings}
    DEPENDS ${PROJECT_SOURCE_DIR}/cmake/docstring_table.py ${stub}
    COMMENT "Generating the docstrings of the bindings from the stub"
    VERBATIM)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated/bindings)
  add_custom_target(shmtree_docstrings DEPENDS ${docstrings})
  add_dependencies(shmtree_generated shmtree_docstrings)
  target_sources(_core PRIVATE ${docstrings})
  target_include_directories(_core PRIVATE ${PROJECT_SOURCE_DIR}/python ${PROJECT_BINARY_DIR}/generated)
  # Ignore warnings in the headers of pybind11 and NumPy.
  target_include_directories(_core SYSTEM PRIVATE ${Python_NumPy_INCLUDE_DIRS})
  target_link_libraries(_core PRIVATE shmtree_options shmtree_service shmtree_shared_array shmtree_replay
                        shmtree_observe shmtree_recording shmtree_shared_list)
  target_compile_definitions(_core PRIVATE SHMTREE_VERSION="${SHMTREE_VERSION}" PY_SSIZE_T_CLEAN)
  if(SHMTREE_IN_PLACE)
    set_target_properties(_core PROPERTIES
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/shmtree EXCLUDE_FROM_ALL ON)
  else()
    install(TARGETS _core LIBRARY DESTINATION shmtree COMPONENT python)
  endif()
else()
  message(STATUS "shmtree: python/bindings has no sources, so the extension is not built")
endif()
