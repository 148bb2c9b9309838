/// @file
/// Rows that many processes add and many draw, in shared memory: a replay buffer, without a server.
///
///     shmtree::ReplayBuffer buffer = shmtree::make_replay({
///         .capacity = 1'000'000,
///         .columns = {{"obs", shmtree::DType::kFloat32, {4}}, {"action"}, {"reward", shmtree::DType::kFloat32}},
///         .samplers = {{.kind = shmtree::ReplayKind::kPrioritized}},
///         .name = "experience"});
///     shmtree::ReplayWriter writer = buffer.writer().value();
///     writer.add(shmtree::Dict{{"obs", obs}, {"action", 1}, {"reward", 0.5}}).value();
///     shmtree::ReplayBatch batch = buffer.sample(256, 10s).value();
///     std::span<const float> seen = batch.span<float>("obs");           // 256 x 4
///     buffer.update_priorities(batch.index(), errors).value();
///
/// The same as shmtree.replay.ReplayBuffer of Python, which opens what C++ made and the other way round: by name and by
/// handle. docs/replay.md says what rows, episodes, samplers and limits are.
///
/// Leaves are named by their paths: "obs", or "info/speed" for a leaf of a dict in a dict, a number for a place in a
/// list. Rows are Values of the same nest: a Dict, or an aggregate with SHMTREE_FIELDS. Arrays have the dtype and the
/// shape of their column; numbers become those of their column where they fit it.
///
/// Ownership: a ReplayBuffer and a ReplayWriter are handles, copies name the same one; the buffer lives as long as any
/// process has it. A batch is its own, and its spans stay valid as long as it or a copy of it lives.
/// Thread safety: any thread may use any of them; threads that share a writer take turns. Waits end with their timeout,
/// when any thread closes the object (kClosed), and when the stop_token of the call is stopped (kInterrupted). If the
/// token was stopped before the call, the call does nothing, even if it would not block.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/replay_batch.h"
#include "shmtree/result.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct ReplayState;
struct ReplayVectorState;
struct ReplayWriterState;
}  // namespace api

/// A leaf of the rows.
struct ReplayColumn {
  std::string path{};                 ///< "obs", or "info/speed"
  DType dtype = DType::kInt64;        ///< of its elements
  std::vector<std::int64_t> shape{};  ///< empty: one number
};

/// By whom rows are drawn.
enum class ReplayKind : std::uint8_t {
  kUniform = 1,      ///< each row is as likely
  kPrioritized = 2,  ///< a row is as likely as (priority + eps)^alpha
  kFifo = 3,         ///< the oldest rows, in their order; with max_times it moves on
  kLifo = 4,         ///< the newest rows, the newest first
  kMaxPriority = 5,  ///< the rows of the largest priorities, the largest first
};

/// A sampler of a buffer.
struct ReplaySampler {
  std::string name = "default";            ///< for sample()
  ReplayKind kind = ReplayKind::kUniform;  ///< what it does
  double alpha = 0.6;                      ///< 0 makes all rows as likely
  double beta = 0.4;                       ///< how far weights make up for that; 1 does so fully
  double eps = 1e-6;                       ///< keeps rows of priority 0 possible
  std::uint32_t max_times = 0;             ///< how often it draws a row, for all processes together; 0: no limit
};

/// How far those who add and those who draw may get from each other, as Reverb's SampleToInsertRatio.
struct ReplayLimit {
  double samples_per_insert = 1;         ///< how often a row is drawn, on average
  std::uint64_t min_size = 1;            ///< rows before anybody draws
  std::optional<double> error_buffer{};  ///< inserts x samples_per_insert - samples stays within samples_per_insert x
                                         ///< min_size +- this; without it what suits the others
};

/// What make_replay() makes.
struct ReplayOptions {
  std::uint64_t capacity = 0;           ///< rows; the oldest go first. Or, in place of it, max_bytes
  std::vector<ReplayColumn> columns{};  ///< what a row is. Or, in place of it, example
  std::vector<std::string> next{};      ///< keys of a row whose leaves are wanted of the following row too: "next/obs"
  std::uint32_t n_step = 1;             ///< how many rewards are summed
  double gamma = 0.99;                  ///< what each step further on counts
  std::map<std::string, std::uint32_t> stack{};  ///< by path: how many frames a batch has of a leaf
  bool stack_repeats_first = false;              ///< pad with the episode's first frame instead of zeros
  std::optional<std::string> reward = "reward";  ///< path of the leaf that is summed, if there is one
  /// Path of the leaf that ends episodes. Rows with leaves `terminated` and `truncated`, as Gymnasium has them, need no
  /// such leaf. A true `terminated` ends the episode, and nothing comes after it. A true `truncated` ends it too, and
  /// its last observation has a value (`final`). `done` is the union of the two. If rows have all three, they have to
  /// agree (kInvalid). If they lack one of the two, `done` stands for it; if they lack both, for `terminated`.
  /// nullopt: no leaf ends an episode, only calls do. Rows with none of these leaves are kInvalid if the buffer has
  /// `next`, `n_step` or `stack`, and for sample_sequences().
  std::optional<std::string> done = "done";
  std::vector<ReplaySampler> samplers{ReplaySampler{}};  ///< sample() takes the first by default
  std::optional<ReplayLimit> limit{};                    ///< none: nobody waits
  std::uint64_t chunk = 0;    ///< rows that are let go of at once, a power of two up to 64; 0: what suits. 1: a ring
  std::uint64_t streams = 1;  ///< how many writers there are, about
  /// Whether who waits for rows, or for room under a limit, is told that all others were killed (kPeerDied), until
  /// somebody comes, or waits for those who come. kEach is refused.
  OnPeerDeath on_peer_death = OnPeerDeath::kWait;
  std::string name{};                   ///< for open_replay(), and ReplayBuffer.open() of Python
  std::optional<Arena> arena{};         ///< where it lies; without one an arena of its own
  std::optional<std::uint64_t> seed{};  ///< of this object's draws; without one other draws each time
  std::uint64_t max_bytes = 0;          ///< in place of a capacity: what all of it may take
  /// In place of columns: a row, or one like it, such as an aggregate with SHMTREE_FIELDS. Arrays keep their dtype and
  /// shape; floats are float32, ints int64, those without a sign uint64, as Python's are.
  std::optional<Value> example{};
  bool exist_ok = false;  ///< see PairOptions; does not compare `seed`, `streams` or a `chunk` of 0
};

/// How sample() draws.
struct ReplayDraw {
  std::string sampler{};         ///< by its name; empty: the first
  bool replace = true;           ///< whether a row may be drawn several times
  unsigned threads = 1;          ///< how many may copy
  std::optional<double> beta{};  ///< in place of the sampler's
  bool weights_of_buffer =
      false;  ///< the largest weight, 1, is that of the least likely row of the buffer, not the batch
  /// Where the leaves go, by their paths: all of them, or none. Each has n times the bytes of a row's.
  std::map<std::string, std::span<std::byte>> out{};
  /// In place of that: new arrays of ReplayBuffer::arena(). ReplayBatch::array_ref() has them, and a channel of that
  /// arena sends them without a copy, once.
  bool in_arena = false;
};

/// How sample_sequences() draws.
struct ReplaySequences {
  std::uint64_t stride = 1;        ///< from one row of a sequence to the next
  bool pad = true;                 ///< whether a sequence may be shorter: mask() says where rows are
  unsigned threads = 1;            ///< how many may copy
  std::string sampler{};           ///< who draws the first rows, by its name; empty: any row, each as likely
  bool replace = true;             ///< whether several may begin with the same row
  std::optional<double> beta{};    ///< in place of the sampler's
  bool weights_of_buffer = false;  ///< as of ReplayDraw; rows of a sequence have the weight of its first one
  std::map<std::string, std::span<std::byte>> out{};  ///< as of ReplayDraw: n x length times the bytes of a row's
  bool in_arena = false;                              ///< as of ReplayDraw
};

/// What many rows are besides their leaves; each of as many as there are rows, or empty.
struct ReplayMarks {
  /// Rows at which an episode was cut off, in addition to the rows whose leaves say that it ended. If
  /// ReplayOptions::done is nullopt, or no leaf ends episodes, these episodes terminated.
  std::span<const bool> ends{};
  std::span<const double> priorities{};  ///< one for each
  /// Where the buffer has `next`: last observations, a nest of arrays of the leaves that it has, for each row or for
  /// each that ends its episode. Those that were cut off need them.
  Value final{};
  std::span<const bool> reset{};  ///< of a vector of streams: rows that are not steps, which add() skips
};

/// When a vector environment begins a new episode after the end of one, like Gymnasium's AutoresetMode.
enum class ReplayAutoreset : std::uint8_t {
  kNone,      ///< not specified: ReplayMarks::reset names the rows that are not steps
  kNextStep,  ///< in the next step, whose action does nothing: add() skips the row after a row that ended an episode
  kSameStep,  ///< in the step that ended it: every row is a step
};

/// Numbers of a buffer, by all processes together where nothing else is said.
struct ReplayStats {
  std::uint64_t rows = 0;       ///< that can be drawn now, as ReplayBuffer::size()
  std::uint64_t capacity = 0;   ///< that there may be
  std::uint64_t chunk = 0;      ///< rows that are let go of at once
  std::uint64_t row_bytes = 0;  ///< of each
  std::uint64_t max_bytes = 0;  ///< of all rows, when it is full
  /// Rows and last observations, since the buffer was made, or the one that it was loaded from, as samples are. A chunk
  /// that was left part-full counts as a full one when it is gone.
  std::uint64_t added = 0;
  std::map<std::string, std::uint64_t> samples{};  ///< rows drawn, or sequences, by sampler
  double samples_per_insert = 0;                   ///< all samples / added
  std::uint64_t inserted = 0;                      ///< under the limit, since the last clear; 0 without one
  std::uint64_t sampled = 0;                       ///< the same

  std::vector<int> waiting_to_add{};     ///< pids that wait at present for others to draw, as the limit wants
  std::vector<int> waiting_to_sample{};  ///< pids that wait at present for others to add

  // Since the last call on this object; 0 where there was none.
  double added_per_s = 0;       ///< rows, and last observations
  double sampled_per_s = 0;     ///< all samples
  std::uint64_t drawn = 0;      ///< rows that this object drew, of which those below are told
  double age_mean = 0;          ///< rows added since they were, as ReplayBatch::age()
  double age_max = 0;           ///< the same of the oldest
  double version_lag_mean = 0;  ///< how far their version was behind the largest that this object had met
  double version_lag_max = 0;   ///< the same of the one most behind
};

/// How load_replay() makes a buffer: what is not given is as it was saved. What rows are, next, n_step and stack stay.
struct ReplayLoad {
  /// 0: as saved; load_replay() then fails with kInvalid if an empty buffer of that capacity takes more than 256 MiB
  /// plus 16 times the size of the files. A smaller capacity keeps the newest rows.
  std::uint64_t capacity = 0;
  std::string name{};                     ///< without one it has none
  std::vector<ReplaySampler> samplers{};  ///< in place of those that it had
  std::optional<ReplayLimit> limit{};     ///< another one: rows count as added, and as drawn as often as they should
  bool without_limit = false;             ///< none
  std::optional<double> gamma{};          ///< another one
  std::optional<OnPeerDeath> on_peer_death{};  ///< another one; kEach is refused
  std::uint64_t chunk = 0;                     ///< no larger than it was
  std::uint64_t streams = 1;                   ///< how many writers there are, about
  std::optional<Arena> arena{};                ///< where it lies; without one an arena of its own
  std::optional<std::uint64_t> seed{};         ///< of this object's draws
};

/// What a save did.
struct ReplaySaved {
  std::uint64_t save = 0;     ///< its number, from 1 on
  std::uint64_t rows = 0;     ///< that are in the files and can be drawn
  std::uint64_t written = 0;  ///< bytes
  std::uint64_t bytes = 0;    ///< of all files
};

/// One stream of rows, such as one environment's. A forked child that uses it begins a stream of its own.
class ReplayWriter {
 public:
  /// Adds a row, and returns its index. kInvalid names the leaf that is missing, too many or does not fit; nothing is
  /// added then. If the buffer has `next`, a truncated row needs the observation after it, as `final` here or in end():
  /// until then the next row is kInvalid. `final` is ignored if the row does not end its episode.
  /// Without a priority the row gets the largest that was given. Blocks if the buffer has a limit: kFull after the
  /// timeout, kPeerDied if those who drew were killed and on_peer_death asks for it (ReplayOptions). kClosed;
  /// others as of Arena::new_array() while the buffer grows.
  Result<std::int64_t> add(const Value& row, Timeout timeout = std::nullopt,
                           std::optional<double> priority = std::nullopt, const std::stop_token& stop = {},
                           const Value& final = nullptr) const;
  /// Ends the episode: all its rows can be drawn. `final` is the last observation, a nest of the leaves that the buffer
  /// has as `next`, or None. `truncated`: it was cut off and did not terminate; with next it then needs a final
  /// (kInvalid). The last row's own `terminated` or `truncated` takes precedence. Other errors as of add().
  Status end(const Value& final = nullptr, bool truncated = false, Timeout timeout = std::nullopt,
             const std::stop_token& stop = {}) const;
  /// Adds many rows: a nest of arrays that have one dimension more in front, all of one length. Their indices. Errors
  /// as of add(): kInvalid before anything is added; after another one `completed` says how many were, the first ones.
  Result<std::vector<std::int64_t>> extend(const Value& rows, const ReplayMarks& marks = {},
                                           Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// What rows are marked with from now on, such as the number of the weights that acted.
  void set_version(std::int64_t version) noexcept;
  /// The number of the stream, as batches have it. kClosed.
  Result<std::uint32_t> stream() const;
  /// Ends the stream. What was added stays. May be called again; what is left at the end closes by itself.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayWriter(std::shared_ptr<api::ReplayWriterState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayWriterState> state_;
};

/// Several streams that are added to at once, such as a vector of environments.
class ReplayVectorWriter {
 public:
  /// Adds a row to each stream: a nest of arrays whose first dimension is that of the streams. Returns indices, -1
  /// for a skipped row. A row is skipped if it is not a step: `marks` says so, or the environment resets in it
  /// (ReplayAutoreset::kNextStep, Gymnasium's default). Errors as of ReplayWriter::add(): kInvalid before anything is
  /// added; after another error `completed` says how many streams, from the first on, have stored or skipped their row.
  /// If it is 0, nothing has changed, and you can repeat the call.
  Result<std::vector<std::int64_t>> add(const Value& rows, const ReplayMarks& marks = {},
                                        Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Those of the single streams; none of one that was moved from.
  const std::vector<ReplayWriter>& writers() const noexcept;
  /// How many there are.
  std::size_t size() const noexcept { return writers().size(); }
  /// As ReplayWriter::set_version(), of all of them.
  void set_version(std::int64_t version) noexcept;
  /// Ends the streams. What was added stays. May be called again.
  void close();
  /// Whether all of them were.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayVectorWriter(std::shared_ptr<api::ReplayVectorState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayVectorState> state_;
};

/// A replay buffer, as this process has it.
class ReplayBuffer {
 public:
  /// A new stream of rows. kClosed.
  Result<ReplayWriter> writer() const;
  /// So many new streams, which are added to at once. kInvalid for none, and for more than 2^20; kClosed.
  Result<ReplayVectorWriter> vector_writer(std::size_t n, ReplayAutoreset autoreset = ReplayAutoreset::kNone) const;

  /// Adds a row, in a stream of the calling thread's own, which ends with the thread. As ReplayWriter::add().
  Result<std::int64_t> add(const Value& row, Timeout timeout = std::nullopt,
                           std::optional<double> priority = std::nullopt, const std::stop_token& stop = {},
                           const Value& final = nullptr) const;
  /// Ends the episode in that stream. As ReplayWriter::end().
  Status end(const Value& final = nullptr, bool truncated = false, Timeout timeout = std::nullopt,
             const std::stop_token& stop = {}) const;
  /// Adds many rows, in that stream. As ReplayWriter::extend().
  Result<std::vector<std::int64_t>> extend(const Value& rows, const ReplayMarks& marks = {},
                                           Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Draws n rows; waits for the first one. kEmpty after the timeout, kPeerDied when those who added were killed and it
  /// is told (ReplayOptions::on_peer_death); kInvalid for n of 0, more different rows than there are, a sampler that
  /// there is not, or an `out` that does not fit; kClosed.
  Result<ReplayBatch> sample(std::size_t n, Timeout timeout = std::nullopt, const ReplayDraw& how = {},
                             const std::stop_token& stop = {}) const;
  /// Draws n sequences: a row, each as likely, and those after it in its episode, `length` in all. Waits as sample().
  Result<ReplayBatch> sample_sequences(std::size_t n, std::size_t length, Timeout timeout = std::nullopt,
                                       const ReplaySequences& how = {}, const std::stop_token& stop = {}) const;
  /// Gives rows new priorities, for all samplers that have any, or for that one. Which of them were there: false where
  /// the row was overwritten meanwhile. kInvalid, and nothing is changed, for lengths that differ, a priority that is
  /// negative, not finite or too large, and an index that was never given. The result is false for -1, which add() of a
  /// vector writer returns for a row that it skips.
  Result<std::vector<bool>> update_priorities(std::span<const std::int64_t> index, std::span<const double> priority,
                                              const std::string& sampler = {}) const;
  /// The same.
  Result<std::vector<bool>> update_priorities(std::span<const std::int64_t> index, std::span<const float> priority,
                                              const std::string& sampler = {}) const;
  /// The largest priority that was given, 1.0 at first: that of rows which are added without one. 0: closed.
  double max_priority() const noexcept;

  /// Rows that can be drawn; 0 after close(). With `stack`, a row stops counting once the buffer has dropped earlier
  /// frames of its stack.
  std::uint64_t size() const noexcept;
  /// Rows that there may be.
  std::uint64_t capacity() const noexcept;
  /// Where it lies: a channel of that arena sends the arrays of a batch there without a copy. kClosed.
  Result<Arena> arena() const;
  /// What a row is, in order.
  std::vector<ReplayColumn> columns() const;
  /// kClosed.
  Result<ReplayStats> stats() const;
  /// All rows go; their indices are never given again. kClosed; kTimeout when a stopped process keeps the lock.
  Status clear(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Brings a folder up to date, or makes it: what it has already is not written again. kOs where the disk refuses,
  /// kUnavailable while somebody else saves or loads there, or when all rows were overwritten meanwhile, again and
  /// again; kExists for a folder of other files.
  Result<ReplaySaved> save(const std::string& path, const std::stop_token& stop = {}) const;

  /// A text by which a process of the same user opens it; this one keeps it until then. kClosed, kOutOfSharedMemory.
  Result<std::string> handle() const;
  /// The buffer of such a text. kInvalid for one that is no handle, kIncompatible for that of something else, kNotFound
  /// when nobody has it any more.
  static Result<ReplayBuffer> open(const std::string& handle);

  /// Of this process's part by this object and its copies, and of its writers. Batches stay. Waits of its calls end.
  void close();
  /// Whether it was, or was moved from.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayBuffer(std::shared_ptr<api::ReplayState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayState> state_;
};

/// A new buffer. Throws BadResult: kInvalid, with the numbers and the leaf, for what cannot be; kExists for a name in
/// use.
ReplayBuffer make_replay(const ReplayOptions& options);

/// The buffer that some process of this user named, from C++ or Python. kNotFound for a name that is not in use,
/// kInvalid for one that names something else.
/// Waits up to `timeout` for a process to make it (kTimeout); by default, not at all.
Result<ReplayBuffer> open_replay(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// A new buffer with the rows that were saved in that folder, their indices and their priorities. kNotFound where
/// nothing was saved, kCorrupt, with the file and the numbers, where any byte of a file is not as it was written;
/// others as what make_replay() throws.
Result<ReplayBuffer> load_replay(const std::string& path, const ReplayLoad& how = {});

/// One that a program in Python put into a message: `item["buffer"].as<shmtree::ReplayBuffer>()`. Errors as of
/// ReplayBuffer::open(), and kInvalid for another item.
template <>
struct ItemAs<ReplayBuffer> {
  static Result<ReplayBuffer> make(const Item& item);
};

}  // namespace shmtree
