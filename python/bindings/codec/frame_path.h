// Where a node lies in the tree of a frame, in the words of describe(). For errors: it reads the frame once more.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace shmtree::python {

// The steps from the root to the node that was read as the `number`-th, from 0: `["obs"][0].field`. Empty for the root;
// none when the frame has no such node, as when its memory was changed meanwhile.
std::optional<std::string> path_of_node(std::span<const std::byte> frame, std::size_t number);

}  // namespace shmtree::python
