// The C++ part of a Subscriber object.
#pragma once

#include <memory>

#include "bindings/endpoint/published.h"
#include "broadcast/subscriber.h"

namespace shmtree::python {

class __attribute__((visibility("hidden"))) SubscriberEnd : public Closable<broadcast::Subscriber> {
 public:
  SubscriberEnd(std::unique_ptr<broadcast::Subscriber> made, bool allows)
      : Closable(std::shared_ptr<broadcast::Subscriber>(std::move(made)), "Subscriber"),
        allow_pickle(allows && open()->ring()->allows_pickle()) {}
  const bool allow_pickle;
};

}  // namespace shmtree::python
