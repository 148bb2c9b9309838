// Measures typed messages in one thread: hand-packed structs and messages of Cap'n Proto. A message has a number, a
// name and bytes. Each iteration builds a message, puts it, gets it and reads its fields. Prints microseconds per
// message, the best of several rounds.
#include <messages.capnp.h>
#include <shmtree/capnp.h>
#include <shmtree/shmtree.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

using namespace shmtree;

namespace {

struct Head {
  std::uint64_t seq;
  std::uint64_t bytes;
  char frame[16];
};

constexpr const char* kFrame = "camera/left";

struct Ends {
  std::pair<Sender, Receiver> pair = make_pair({.arena = Arena::create({.max_bytes = 256 << 20}).value()});
  const Sender& sender = pair.first;
  const Receiver& receiver = pair.second;
};

void check(std::uint64_t seq, std::uint64_t wanted, std::string_view frame, unsigned first, unsigned last) {
  if (seq == wanted && frame == kFrame && first == 1 && last == 2) return;
  std::puts("another message arrived");
  std::exit(1);
}

void check_packed(const FlatItem& item, std::uint64_t seq) {
  Head head;
  std::memcpy(&head, item.bytes().data(), sizeof(head));
  const auto data = item.bytes().subspan(sizeof(head), head.bytes);
  check(head.seq, seq, head.frame, static_cast<unsigned>(data.front()), static_cast<unsigned>(data.back()));
}

void check_capnp(const Item& item, std::uint64_t seq) {
  const auto pose = item.capnp<Pose>();
  const auto data = pose->getImage();
  check(pose->getSeq(), seq, pose->getFrame().cStr(), data[0], data[data.size() - 1]);
}

void pack(std::span<std::byte> out, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  Head head{.seq = seq, .bytes = data.size(), .frame = {}};
  std::strcpy(head.frame, kFrame);
  std::memcpy(out.data(), &head, sizeof(head));
  std::memcpy(out.data() + sizeof(head), data.data(), data.size());
}

void packed(const Ends& ends, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  std::vector<std::byte> bytes(sizeof(Head) + data.size());
  pack(bytes, seq, data);
  ends.sender.put_bytes(bytes).value();
  check_packed(ends.receiver.get_bytes().value(), seq);
}

void packed_in_place(const Ends& ends, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  LoanedBytes loan = ends.sender.loan_bytes(sizeof(Head) + data.size()).value();
  pack(loan.bytes(), seq, data);
  ends.sender.put(std::move(loan)).value();
  check_packed(ends.receiver.get_bytes().value(), seq);
}

template <class Builder>
void put_capnp(const Ends& ends, Builder& builder, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  auto pose = builder.template initRoot<Pose>();
  pose.setSeq(seq);
  pose.setFrame(kFrame);
  pose.setImage(capnp::Data::Reader(data.data(), data.size()));
  ends.sender.template put<Pose>(builder).value();
  check_capnp(ends.receiver.get().value(), seq);
}

void capnp_copied(const Ends& ends, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  capnp::MallocMessageBuilder builder;
  put_capnp(ends, builder, seq, data);
}

void capnp_in_place(const Ends& ends, std::uint64_t seq, const std::vector<std::uint8_t>& data) {
  ArenaMessageBuilder builder(ends.sender, std::nullopt, 32);
  put_capnp(ends, builder, seq, data);
}

using Way = void (*)(const Ends&, std::uint64_t, const std::vector<std::uint8_t>&);

double microseconds(Way way, std::size_t bytes) {
  using Clock = std::chrono::steady_clock;
  const Ends ends;
  std::vector<std::uint8_t> data(bytes);
  data.front() = 1;
  data.back() = 2;
  const std::uint64_t count = bytes > 100'000 ? 300 : 5000;
  double best = 1e9;
  for (int round = 0; round < 7; ++round) {
    const auto began = Clock::now();
    for (std::uint64_t seq = 0; seq < count; ++seq) way(ends, seq, data);
    const std::chrono::duration<double, std::micro> took = Clock::now() - began;
    best = std::min(best, took.count() / static_cast<double>(count));
  }
  return best;
}

}  // namespace

int main() {
  std::puts(
      "| microseconds per message | packed, copied | packed in place | Cap'n Proto, copied | Cap'n Proto in place |");
  std::puts("|---|---:|---:|---:|---:|");
  for (const auto& [label, bytes] :
       {std::pair("100 B", 100), std::pair("10 KB", 10'000), std::pair("1 MB", 1'000'000)}) {
    std::printf("| %s |", label);
    for (const Way way : {packed, packed_in_place, capnp_copied, capnp_in_place}) {
      std::printf(" %.2f |", microseconds(way, static_cast<std::size_t>(bytes)));
    }
    std::puts("");
  }
}
