@0xe3785fdbf8043994;
# Types for messages of tests and benchmarks. tests/python reads this file, too.

struct Pose @0xd8a1b2c3d4e5f607 {
  seq @0 :UInt64;
  frame @1 :Text;
  position @2 :List(Float64);
  image @3 :Data;
  parent @4 :Pose;
}

struct Other @0xd8a1b2c3d4e5f608 {
  seq @0 :UInt64;
}
