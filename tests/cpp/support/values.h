// Converts C++ values to Items.
#pragma once

#include "support/catch2.h"
#include "support/frames.h"
#include "value/codec.h"

namespace shmtree::test {

// Encodes a value, and returns the Item that a receiver gets.
inline Item sent(const Value& value) {
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  Bytes frame(builder.total_bytes());
  builder.write(frame.data());
  return value::decode(frame, nullptr).value();
}

// Returns the error of a conversion to T.
template <class T>
Error refused(const Item& item) {
  const Result<T> result = item.try_as<T>();
  REQUIRE_FALSE(result.ok());
  return result.error();
}

}  // namespace shmtree::test
