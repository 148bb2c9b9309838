// Sends 1 KB between processes with iceoryx: written in place into a loaned chunk, received by polling, and without
// loss if the receiver is slow. The first measurement starts iceoryx's daemon, and the end of this program stops it.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iceoryx_hoofs/log/logmanager.hpp>
#include <iceoryx_posh/popo/publisher.hpp>
#include <iceoryx_posh/popo/subscriber.hpp>
#include <iceoryx_posh/popo/untyped_publisher.hpp>
#include <iceoryx_posh/popo/untyped_subscriber.hpp>
#include <iceoryx_posh/runtime/posh_runtime.hpp>
#include <memory>
#include <string>

#include "between.h"
#include "transports.h"

namespace shmtree::bench {
namespace {

// Runs iox-roudi with chunks of the measured size.
class Daemon {
 public:
  static bool is_running() {
    static Daemon daemon;
    return daemon.ready_;
  }
  ~Daemon() {
    if (pid_ == 0 || getpid() != owner_) return;
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

 private:
  Daemon() {
    std::ofstream(config_) << "[general]\nversion = 1\n[[segment]]\n[[segment.mempool]]\nsize = 1280\ncount = 2000\n";
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execlp("iox-roudi", "iox-roudi", "-m", "off", "-c", config_.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    std::string said;
    char text[256];
    for (ssize_t count = 1; count > 0 && !ready_; ready_ = said.find("is ready") != said.npos) {
      count = read(ends[0], text, sizeof text);
      said.append(text, count > 0 ? static_cast<std::size_t>(count) : 0);
    }
    std::filesystem::remove(config_);  // the daemon has read it
    // The pipe stays open, because the daemon keeps writing to it.
  }

  const std::string config_ = std::filesystem::temp_directory_path() / ("iox-" + std::to_string(getpid()) + ".toml");
  const pid_t owner_ = getpid();
  pid_t pid_ = 0;
  bool ready_ = false;
};

// Publishers and subscribers of structs, and of untyped bytes.
struct Typed {
  using Publisher = iox::popo::Publisher<Payload>;
  using Subscriber = iox::popo::Subscriber<Payload>;
  static void send(Publisher& publisher, std::uint64_t number) {
    auto loan = publisher.loan();
    require(!loan.has_error(), "iceoryx has no chunk");
    loan.value()->fill(number);
    loan.value().publish();
  }
  static std::uint64_t number_of(Subscriber&, const iox::popo::Sample<const Payload>& sample) {
    return checked_number(sample->data(), kKilobyte);
  }
};
struct Untyped {
  using Publisher = iox::popo::UntypedPublisher;
  using Subscriber = iox::popo::UntypedSubscriber;
  static void send(Publisher& publisher, std::uint64_t number) {
    auto loan = publisher.loan(kKilobyte, alignof(Payload));
    require(!loan.has_error(), "iceoryx has no chunk");
    static_cast<Payload*>(loan.value())->fill(number);
    publisher.publish(loan.value());
  }
  static std::uint64_t number_of(Subscriber& subscriber, const void* bytes) {
    const std::uint64_t number = checked_number(bytes, kKilobyte);
    subscriber.release(bytes);
    return number;
  }
};

// Gives each measurement its own service, because the daemon keeps the samples of exited publishers.
int next_number() {
  static int made = 0;
  return ++made;
}

template <class Kind>
class IceoryxTransport {
 public:
  void join(bool sends) {
    using namespace iox;
    static const bool once = [] {
      log::LogManager::GetLogManager().SetDefaultLogLevel(log::LogLevel::kError, log::LogLevelOutput::kHideLogLevel);
      runtime::PoshRuntime::initRuntime(RuntimeName_t(cxx::TruncateToCapacity, "bench-" + std::to_string(getpid())));
      return true;
    }();
    benchmark::DoNotOptimize(once);
    const capro::ServiceDescription service{"bench",
                                            capro::IdString_t(cxx::TruncateToCapacity, std::to_string(number_)), "1KB"};
    if (sends) {
      popo::PublisherOptions options;
      options.subscriberTooSlowPolicy = popo::ConsumerTooSlowPolicy::WAIT_FOR_CONSUMER;
      publisher_ = std::make_unique<typename Kind::Publisher>(service, options);
      while (!publisher_->hasSubscribers()) sched_yield();
    } else {
      popo::SubscriberOptions options;
      options.queueCapacity = kCapacity;
      options.queueFullPolicy = popo::QueueFullPolicy::BLOCK_PRODUCER;
      subscriber_ = std::make_unique<typename Kind::Subscriber>(service, options);
      while (subscriber_->getSubscriptionState() != SubscribeState::SUBSCRIBED) sched_yield();
    }
  }

  void send(std::uint64_t number) { Kind::send(*publisher_, number); }
  std::uint64_t receive() {
    for (;;) {
      auto sample = subscriber_->take();
      if (!sample.has_error()) return Kind::number_of(*subscriber_, sample.value());
      require(sample.get_error() == iox::popo::ChunkReceiveResult::NO_CHUNK_AVAILABLE, "iceoryx took nothing");
    }
  }

 private:
  const int number_ = next_number();
  std::unique_ptr<typename Kind::Publisher> publisher_;
  std::unique_ptr<typename Kind::Subscriber> subscriber_;
};

template <class Kind>
void iceoryx_throughput(benchmark::State& state) {
  if (!Daemon::is_running()) return state.SkipWithError("iox-roudi did not start; is another one running?");
  throughput(state, [] { return IceoryxTransport<Kind>(); });
}
template <class Kind>
void iceoryx_half_round_trip(benchmark::State& state) {
  if (!Daemon::is_running()) return state.SkipWithError("iox-roudi did not start; is another one running?");
  half_round_trip(state, [] { return IceoryxTransport<Kind>(); });
}
BENCHMARK(iceoryx_throughput<Typed>)->Name("throughput/1KB_iceoryx")->UseManualTime()->Iterations(100'000);
BENCHMARK(iceoryx_throughput<Untyped>)->Name("throughput/1KB_iceoryx_untyped")->UseManualTime()->Iterations(100'000);
BENCHMARK(iceoryx_half_round_trip<Typed>)->Name("half_round_trip/1KB_iceoryx")->UseManualTime()->Iterations(20'000);
BENCHMARK(iceoryx_half_round_trip<Untyped>)
    ->Name("half_round_trip/1KB_iceoryx_untyped")
    ->UseManualTime()
    ->Iterations(20'000);

}  // namespace
}  // namespace shmtree::bench
