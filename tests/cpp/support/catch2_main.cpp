// The main function that version 2 of Catch2 wants compiled once; version 3 brings its own.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
