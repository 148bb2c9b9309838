// The tree of a frame as text, without making any object of it: safe for frames from anybody.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shmtree/result.h"

namespace shmtree::python {

// One line per node: kind, class, value or shape, bytes. Long containers and texts are cut short.
Result<std::string> describe_frame(std::span<const std::byte> frame);

// The steps from the root to the node that is the `number`-th of the frame, from 0: `["obs"][0].field`. Empty for the
// root; none when the frame has no such node, as when its memory was changed meanwhile. For errors: it reads the frame
// once more.
std::optional<std::string> path_of_node(std::span<const std::byte> frame, std::size_t number);

// Returns the field names of that node, if it is a dataclass. Also for errors only.
std::vector<std::string> fields_of_node(std::span<const std::byte> frame, std::size_t number);

}  // namespace shmtree::python
