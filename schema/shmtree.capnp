@0xbe1c0f4da74c2365;
# The metadata of a frame: one tree, flattened in preorder into columns. docs/internals/frame.md describes how nodes use
# them, and include/shmtree/base/kind.h lists the numbers of the kinds. A column without values is a null pointer.
#
# If you add, remove or change a field, increment the version in the frame's header. Readers reject unknown columns, and
# would misread changed ones.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("shmtree::schema");

struct Frame {
  kinds @0 :Data;
  # One byte per node: a Kind. The first is the root; there is always one.

  lengths @1 :Data;
  # Counts, sizes in bytes, flags and references to names: 0 to 254 stand for themselves, 255 for the next of `ints`.

  text @2 :Data;
  # The bytes of all short strings, names and other short runs of bytes, without separators.

  ints @3 :List(Int64);

  floats @4 :List(Float64);

  arrays @5 :Arrays;
  # Null if no array, string or bytes value of the message is stored in a buffer.
}

struct Arrays {
  arrays @0 :List(Array);

  buffers @1 :List(UInt64);
  # Bytes of each raw buffer, in the order in which they follow the metadata.

  views @2 :List(Int64);
  # In bytes, array by array: an offset if the array has one, then a stride per dimension if it is strided.

  externals @3 :List(External);
  # Ranges of bytes outside this frame to which arrays refer.
}

struct Array {
  dtype @0 :UInt8;
  # A DType. 0 is a dtype that a name describes.

  flags @1 :UInt8;
  # The sum of these:
  const readOnly :UInt8 = 1;   # the sender's array was not writable
  const fortran :UInt8 = 2;    # the first index varies fastest; without `fortran` and `strided`, the last index does
  const strided :UInt8 = 4;    # `views` has one stride per dimension
  const offset :UInt8 = 8;     # `views` has the offset in bytes of the first element in the buffer, before the strides
  const external :UInt8 = 16;  # `buffer` is an index of `externals`
  const noBuffer :UInt8 = 32;  # an array without bytes

  ndim @2 :UInt8;
  # At most 64. The shape is in `lengths`.

  buffer @3 :UInt32;
  # Index of `buffers`, or of `externals`; 0 for an array without bytes.
}

struct External {
  reference @0 :UInt32;
  # Index into the list of blocks to which the message refers. That list is not part of the frame.

  offset @1 :UInt64;
  # In bytes, from the start of that block.

  bytes @2 :UInt64;
}
