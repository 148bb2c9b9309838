// The C++ API for reading recordings.
#include <filesystem>
#include <string>
#include <vector>

#include "shmtree/shmtree.h"
#include "support/catch2.h"
#include "support/recordings.h"

using namespace shmtree;
using namespace shmtree::test;

namespace {

std::string frame_of(const Value& value) {
  const Frame frame = pack(value).value();
  return {reinterpret_cast<const char*>(frame.bytes().data()), frame.bytes().size()};
}
std::string small() {
  std::vector<float> numbers(1'000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const Value obs = Dict{{"step", 1}, {"obs", numbers}};
  return small_recording(frame_of(obs), frame_of("an action"), frame_of(List{1, 2.5, "three"}));
}

// Reads an item as a text, an array, or a number.
void look_into(const Item& item) {
  (void)item.try_as<std::string>().ok();
  (void)item.try_as<double>().ok();
  if (const auto view = item.try_view()) {
    std::vector<std::byte> copy(view->elements * view->item_bytes);
    view->copy_to(copy.data());
  }
  for (const Item& part : item) look_into(part);
}
void look_into(const std::string& path) {
  const auto opened = Recording::open(path);
  if (!opened) {
    CHECK(opened.code() == Code::kCorrupt);
    return;
  }
  for (const RecordedMessage& message : *opened) {
    if (const auto item = message.load()) look_into(*item);
  }
}

}  // namespace

TEST_CASE("a recording loads messages in order with arrays as views") {
  const FileInMemory file(small());
  const Recording recording = Recording::open(file.path()).value();
  CHECK(recording.path() == file.path());
  CHECK(recording.size() == 3);
  CHECK(recording.whole());
  REQUIRE(recording.channels().size() == 2);
  CHECK(recording.channels()[0].name == "obs");
  CHECK(recording.channels()[0].messages == 2);
  CHECK(recording.missed()[0].messages == 12);

  std::vector<RecordedMessage> messages;
  for (const RecordedMessage& message : recording) messages.push_back(message);
  REQUIRE(messages.size() == 3);
  CHECK(messages[0].channel == "obs");
  CHECK(messages[0].sequence == 7);
  CHECK(messages[0].time_ns == 1'000);
  CHECK(messages[1].load().value().as<std::string>() == "an action");
  CHECK(messages[2].load().value()[2].as<std::string>() == "three");
  const Item item = messages[0].load().value();
  const ArrayView view = item["obs"].view();
  CHECK(view.read_only);
  CHECK(view.data > messages[0].frame.data());
  CHECK(view.data < messages[0].frame.data() + messages[0].frame.size());
}

// guarantee: recordings
TEST_CASE("an item of a recorded message keeps the file mapped") {
  Item item;
  {
    const FileInMemory file(small());
    item = (*Recording::open(file.path()).value().begin()).load().value();
  }
  const auto numbers = item["obs"].span<const float>();
  for (std::size_t i = 0; i < numbers.size(); ++i) REQUIRE(numbers[i] == static_cast<float>(i));
}

TEST_CASE("put_frame sends recorded messages unchanged") {
  const FileInMemory file(small());
  auto [sender, receiver] = make_pair();
  const Recording recording = Recording::open(file.path()).value();
  for (const RecordedMessage& message : recording) sender.put_frame(message.frame).value();
  CHECK(receiver.get().value()["step"].as<int>() == 1);
  CHECK(receiver.get().value().as<std::string>() == "an action");
}

// guarantee: recordings
TEST_CASE("a recording with any byte changed loads or reports an error") {
  const std::string bytes = small();
  const FileInMemory file(bytes);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      file.write(at, std::string(1, static_cast<char>(bytes[at] ^ mask)));
      look_into(file.path());
    }
    file.write(at, bytes.substr(at, 1));
  }
}

TEST_CASE("a recording cut off at any byte loads or reports an error") {
  const std::string bytes = small();
  const FileInMemory file(bytes);
  for (std::size_t size = bytes.size() + 1; size-- > 0;) {
    file.cut(size);
    look_into(file.path());
  }
}

TEST_CASE("begin throws if a recording was altered after open") {
  const std::string bytes = small();
  const FileInMemory file(bytes);
  const Recording recording = Recording::open(file.path()).value();
  file.write(kMagic.size(), std::string(1, '\0'));
  CHECK_THROWS_AS(recording.begin(), BadResult);
  CHECK(Recording::open(file.path()).code() == Code::kCorrupt);
  CHECK(Recording::open(file.path() + ".gone").code() == Code::kNotFound);
}
