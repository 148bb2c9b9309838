// The tree of a frame as text, without making any object of it: safe for frames from anybody.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "shmtree/result.h"

namespace shmtree::python {

// One line per node: kind, class, value or shape, bytes. Long containers and texts are cut short.
Result<std::string> describe_frame(std::span<const std::byte> frame);

}  // namespace shmtree::python
