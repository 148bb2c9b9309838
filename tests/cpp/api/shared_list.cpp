// The C++ API for reading shared lists.
#include <memory>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/lists.h"
#include "support/recordings.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::string frame_of(const Value& value) {
  const Frame frame = pack(value).value();
  return {reinterpret_cast<const char*>(frame.bytes().data()), frame.bytes().size()};
}
std::string small() {
  const std::vector<float> numbers(1'000, 2.5F);
  return list_of({frame_of(1), frame_of(Dict{{"name", "second"}, {"x", numbers}}), frame_of(List{1, 2.5, "three"})});
}

}  // namespace

TEST_CASE("a list loads items with arrays as views") {
  const FileInMemory file(small());
  const SharedList list = SharedList::load(file.path()).value();
  REQUIRE(list.size() == 3);
  CHECK(list.at(0).value().as<int>() == 1);
  const Item second = list.at(1).value();
  CHECK(second["name"].as<std::string>() == "second");
  const ArrayView array = second["x"].view();
  CHECK(array.read_only);
  const auto frame = list.frame(1).value();
  CHECK(array.data > frame.data());
  CHECK(array.data < frame.data() + frame.size());
  CHECK(second["x"].span<const float>()[999] == 2.5F);

  std::size_t parts = 0;
  for (const Item& item : list) parts += item.size();
  CHECK(parts == 5);
}

TEST_CASE("an item keeps its list mapped") {
  Item item;
  {
    const FileInMemory file(small());
    item = SharedList::load(file.path()).value().at(1).value();
  }
  CHECK(item["x"].span<const float>()[0] == 2.5F);
}

TEST_CASE("an index beyond the list is an error") {
  const FileInMemory file(small());
  const SharedList list = SharedList::load(file.path()).value();
  const auto beyond = list.at(3);
  REQUIRE(beyond.code() == Code::kInvalid);
  CHECK(beyond.error().message == "there is no item 3 in a SharedList of 3 items in '" + file.path() + "'");
  CHECK(SharedList().at(0).code() == Code::kInvalid);
  CHECK(SharedList().begin() == SharedList().end());
}

TEST_CASE("loading a list reports what is wrong") {
  CHECK(SharedList::load("/no/such/list.smt").code() == Code::kNotFound);
  CHECK(SharedList::load("/dev/null").code() == Code::kOs);
  const FileInMemory other("something else");
  CHECK(SharedList::load(other.path()).code() == Code::kCorrupt);
  std::string damaged = small();
  damaged[kListHeaderBytes] = 'x';
  const FileInMemory file(damaged);
  const auto item = SharedList::load(file.path()).value().at(0);
  REQUIRE(item.code() == Code::kCorrupt);
  CHECK(item.error().message.starts_with("item 0: "));
  CHECK(item.error().message.ends_with(" items in '" + file.path() + "')"));
}
