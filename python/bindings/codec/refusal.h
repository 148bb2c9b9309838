// What a PickleRefused says beyond its cause: where the object lies, and who refuses. Found after the refusal, so that
// what is sent and received pays nothing for it.
//
// Each adds to the current exception, if that is a PickleRefused without a path, and leaves any other as it is.
#pragma once

#include <cstddef>
#include <span>

#include "bindings/codec/encode.h"

namespace shmtree::python {

// An object was to be sent, in that session, and `refuser` takes no pickles: "... allow_pickle=False of <refuser>".
[[gnu::cold]] void explain_refused_object(EncodeSession& session, PyObject* object, const char* refuser);

// The node that a walk over the frame had read as the `number`-th; who refuses is added by who knows it.
[[gnu::cold]] void explain_refused_node(std::span<const std::byte> frame, std::size_t number);
// Does the same for an IncompatibleMessage.
[[gnu::cold]] void explain_incompatible_node(std::span<const std::byte> frame, std::size_t number);
[[gnu::cold]] void name_refuser(const char* refuser);

}  // namespace shmtree::python
