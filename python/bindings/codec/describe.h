// Describes the tree of a frame as text without building any object of it. Safe for untrusted frames.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shmtree/base/result.h"

namespace shmtree::python {

// Returns one line per node: kind, class, value or shape, bytes. Shortens long containers and texts.
Result<std::string> describe_frame(std::span<const std::byte> frame);

// Returns the path from the root to node `number`, counted from 0: `["obs"][0].field`, and an empty one for the root.
// Returns nothing if the frame has no such node, for example because its memory was changed meanwhile. Meant for
// errors, since it reads the frame again.
std::optional<std::string> path_of_node(std::span<const std::byte> frame, std::size_t number);

// Returns the field names of that node if it is a dataclass. Also meant for errors.
std::vector<std::string> fields_of_node(std::span<const std::byte> frame, std::size_t number);

}  // namespace shmtree::python
