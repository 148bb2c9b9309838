#include "bindings/replay/streams.h"

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "platform/never_destroyed.h"

namespace shmtree::python {

namespace {

Pool<CallRows>& rows_pool() {
  return platform::never_destroyed<Pool<CallRows>>();
}

}  // namespace

BorrowedRows::BorrowedRows() : taken_(rows_pool().take()) {}

BorrowedRows::~BorrowedRows() {
  taken_->rows.clear();
  taken_->finals.clear();
  rows_pool().give_back(taken_);
}

WriterState::~WriterState() {
  replay::release_stream(std::move(stream));
}

std::shared_ptr<replay::Stream> stream_of(WriterState& state) {
  if (state.closed) {
    PyErr_SetString(error_types().channel_closed, "this writer was closed");
    return nullptr;
  }
  auto stream = replay::stream_of(*state.replay->buffer, state.stream);
  if (stream) return std::move(*stream);
  raise(stream.error());
  return nullptr;
}

}  // namespace shmtree::python
