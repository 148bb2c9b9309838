#include "endpoint/shared_objects.h"

namespace shmtree::endpoint {

Status ObjectRequest::check_existing(const memory::Arena& existing, Status same) const {
  if (arena != nullptr && arena.get() != &existing) {
    same = Error{Code::kInvalid, "it belongs to an object in another arena than the one given"};
  }
  if (same) return same;
  return Error{same.code(), "the name \"" + *name + "\": " + same.error().message};
}

}  // namespace shmtree::endpoint
