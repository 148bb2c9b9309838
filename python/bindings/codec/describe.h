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

// The facts that an error reports of a node.
struct NodeFacts {
  std::optional<std::string> path{};  // path from the root, such as `["obs"][0].field`; empty for the root
  std::vector<std::string> fields{};  // names, if it is a dataclass
};

// Returns the facts of node `number`, counted from 0. There is no path if the frame has no such node, for example
// because its memory was changed meanwhile. Meant for errors, since it reads the frame again.
NodeFacts facts_of_node(std::span<const std::byte> frame, std::size_t number);

}  // namespace shmtree::python
