/// @file
/// A replay buffer without a server: many processes add rows to shared memory, and many sample them.
///
///     shmtree::ReplayBuffer buffer = shmtree::make_replay({
///         .capacity = 1'000'000,
///         .columns = {{"obs", shmtree::DType::kFloat32, {4}}, {"action"}, {"reward", shmtree::DType::kFloat32}},
///         .sampling = {.samplers = {{.kind = shmtree::ReplayKind::kPrioritized}}},
///         .name = "experience"});
///     shmtree::ReplayWriter writer = buffer.writer().value();
///     writer.add(shmtree::Dict{{"obs", obs}, {"action", 1}, {"reward", 0.5}}).value();
///     shmtree::ReplayBatch batch = buffer.sample(256, 10s).value();
///     std::span<const float> seen = batch.span<float>("obs");           // 256 x 4
///     buffer.update_priorities(batch.index(), errors).value();
///
/// Interoperates with shmtree.replay.ReplayBuffer of Python, in both directions, by name and by handle. docs/replay.md
/// describes rows, episodes, samplers and limits.
///
/// A path names a leaf: "obs", or "info/speed" for a leaf of a dict in a dict; a number is a position in a list. Rows
/// are Values with the same pytree structure: a Dict, or an aggregate with SHMTREE_FIELDS. An array must have the dtype
/// and shape of its column. Numbers are converted to the dtype of their column if they fit it.
///
/// Ownership: a ReplayBuffer and a ReplayWriter are handles, and copies refer to the same object. The buffer exists
/// while any process has it. A batch has its own memory: its spans are valid while the batch or a copy of it exists.
/// Thread safety: any thread may use any of these objects. Threads that share a writer take turns. A wait ends with its
/// timeout, when any thread closes the object (kClosed), and when the stop_token of the call is stopped (kInterrupted).
/// If the token was stopped before the call, the call does nothing, even if it would not block.
#pragma once

#include <cstdint>
#include <functional>
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
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/replay_batch.h"
#include "shmtree/value.h"

namespace shmtree {

namespace api {
struct ReplayState;
struct ReplayVectorState;
struct ReplayWriterState;
}  // namespace api

/// A leaf of the rows.
struct ReplayColumn {
  std::string path{};                 ///< Path of the leaf, such as "obs" or "info/speed".
  DType dtype = DType::kInt64;        ///< Type of its elements.
  std::vector<std::int64_t> shape{};  ///< Shape of one row's value. Empty: a number.
};

/// Order in which a sampler chooses rows.
enum class ReplayKind : std::uint8_t {
  kUniform = 1,      ///< All rows are equally likely.
  kPrioritized = 2,  ///< The likelihood of a row is proportional to (priority + eps)^alpha.
  kFifo = 3,  ///< The oldest rows, oldest first. With max_times, the sampler advances to the next row after that many
              ///< samples.
  kLifo = 4,  ///< The newest rows, newest first.
  kMaxPriority = 5,  ///< The rows with the largest priorities, largest first.
};

/// A sampler of a buffer.
struct ReplaySampler {
  std::string name = "default";            ///< Name for sample().
  ReplayKind kind = ReplayKind::kUniform;  ///< Order of the rows.
  double alpha = 0.6;                      ///< 0 makes all rows equally likely.
  double beta = 0.4;  ///< Extent to which the weights of a batch compensate for the unequal probabilities. 1: fully.
  double eps = 1e-6;  ///< Added to each priority, so that rows with priority 0 are sampled, too.
  std::uint32_t max_times = 0;  ///< Times that a row is sampled, by all processes together. 0: unlimited.
};

/// A rate limiter: keeps the ratio of sampled to inserted rows within bounds, like Reverb's SampleToInsertRatio.
struct ReplayRateLimit {
  double samples_per_insert = 1;  ///< Average number of times that a row is sampled.
  std::uint64_t min_size = 1;     ///< Number of rows required before any process samples.
  /// Tolerance. The difference (inserts x samples_per_insert - samples) stays within samples_per_insert x min_size plus
  /// or minus this number. By default it is derived from the other two values.
  std::optional<double> error_buffer{};
};

/// The samplers of a buffer, and the seed of one object.
struct ReplaySampling {
  /// sample() uses the first sampler by default. Empty: a new buffer has a uniform sampler, and load_replay() keeps the
  /// saved samplers.
  std::vector<ReplaySampler> samplers{};
  std::optional<std::uint64_t> seed{};  ///< Seed of the samples of this object. By default random.
};

/// Options for episodes: the parts of a batch that come from later and earlier rows, and the leaves that end episodes.
struct ReplayEpisodes {
  std::vector<std::string> next{};  ///< Keys with leaves that batches also have for the next row: "next/obs".
  std::uint32_t n_step = 1;         ///< Number of rewards that are summed.
  double gamma = 0.99;              ///< Discount per step.
  std::map<std::string, std::uint32_t> stack{};  ///< Number of stacked frames in a batch, by path of the leaf.
  bool stack_repeats_first = false;              ///< Pads with the episode's first frame instead of zeros.
  std::optional<std::string> reward = "reward";  ///< Path of the leaf that is summed, if rows have it.
  /// Path of the leaf that ends episodes. Rows with leaves `terminated` and `truncated`, as Gymnasium has them, need no
  /// such leaf. A true `terminated` ends the episode, and nothing comes after it. A true `truncated` ends it too, but
  /// its last observation (`final`) still has a value for the learner. `done` is the union of the two. If rows have all
  /// three, the values have to agree (kInvalid). If rows lack `terminated` or `truncated`, `done` takes the place of
  /// the missing one. If they lack both, `done` takes the place of `terminated`. nullopt: only calls of end() end an
  /// episode, and no leaf does. Rows with none of these leaves are kInvalid if the buffer has `next`, `n_step` or
  /// `stack`, and for sample_sequences().
  std::optional<std::string> done = "done";
};

/// Options for the rate of adding and sampling, for storage, and for waiting when peers die.
struct ReplayLimits {
  std::optional<ReplayRateLimit> rate{};  ///< Rate limiter. nullopt: none.
  /// Rows that are freed together, a power of two up to 64. 0: chosen automatically. 1: a ring.
  std::uint64_t chunk = 0;
  std::uint64_t streams = 1;  ///< Approximate number of writers.
  /// Effect of killed peers on calls that wait for rows, or for space under `rate`.
  /// - kRaise: if all peers were killed, calls return kPeerDied until a new process attaches.
  /// - kWait: calls wait for new processes.
  /// - kEach is refused.
  OnPeerDeath on_peer_death = OnPeerDeath::kWait;
};

/// Options for make_replay().
struct ReplayOptions {
  std::uint64_t capacity = 0;           ///< Maximum number of rows; the oldest are dropped first. Or set `max_bytes`.
  std::vector<ReplayColumn> columns{};  ///< The columns of a row. Or set `example`.
  ReplaySampling sampling{};            ///< Samplers and seed.
  ReplayEpisodes episodes{};            ///< Successors, summed rewards, stacks, and ends of episodes.
  ReplayLimits limits{};                ///< Rate limiter, chunks, writers, and killed peers.
  std::string name{};                   ///< Name for open_replay() and Python's ReplayBuffer.open().
  std::optional<Arena> arena{};         ///< Arena to use. By default its own.
  std::uint64_t max_bytes = 0;          ///< Instead of `capacity`: memory of the whole buffer in bytes.
  /// Instead of `columns`: an example of a row, such as an aggregate with SHMTREE_FIELDS. Arrays define dtype and
  /// shape. Floats become float32, ints int64 and unsigned ints uint64, as in Python.
  std::optional<Value> example{};
  /// See PairOptions. Does not compare ReplaySampling::seed, ReplayLimits::streams or a ReplayLimits::chunk of 0.
  bool exist_ok = false;
};

/// Rows of an episode from which ReplayHindsight chooses a goal, all with the same probability.
enum class ReplayGoals : std::uint8_t {
  kFuture,   ///< The row itself and those after it.
  kFinal,    ///< The last row.
  kEpisode,  ///< All rows.
};

/// The rows of a batch with new goals, for ReplayHindsight::reward. Valid during the call.
struct ReplayRelabelled {
  std::span<const std::size_t> rows{};  ///< For each relabelled row, its position in the batch.
  ArrayView achieved{};                 ///< The goals that the rows achieved, of shape (rows.size(), ...).
  ArrayView desired{};                  ///< The new goals of the rows, of the same shape.
  std::span<double> rewards{};          ///< Output: the reward of each row.
  /// For each row, true if the goal ends the episode. If `has_terminated` is set, these values set
  /// ReplayBatch::discount(), and `terminated` (or `done`) in the data.
  std::span<bool> terminated{};
  bool has_terminated = false;  ///< See `terminated`.
};

/// Hindsight experience replay (M. Andrychowicz et al., NeurIPS 2017): the desired goals of some sampled rows are
/// replaced by goals that rows of their episodes achieved. The goal that a row achieved is the achieved goal of its
/// successor. Therefore the buffer needs ReplayEpisodes::next with the key of the achieved goal, and an n_step of 1. In
/// an unfinished episode, only rows that can be sampled give goals.
struct ReplayHindsight {
  std::function<void(ReplayRelabelled&)> reward{};  ///< Computes the rewards. sample() passes its exceptions on.
  ReplayGoals strategy = ReplayGoals::kFuture;      ///< Rows from which the goals are chosen.
  double k = 4;                                ///< Mean number of relabelled rows for each row that keeps its goal.
  std::string achieved = "obs/achieved_goal";  ///< Path of the goal that an observation achieved.
  std::string desired = "obs/desired_goal";    ///< Path of the goal, a leaf of the same dtype and shape.
};

/// Options for ReplayBuffer::sample().
struct ReplayDraw {
  std::string sampler{};         ///< Name of the sampler. Empty: the first.
  bool replace = true;           ///< Allows a row to occur several times.
  unsigned threads = 1;          ///< Maximum number of threads that copy.
  std::optional<double> beta{};  ///< Replaces the sampler's beta.
  /// Scales the weights so that the largest one, 1, is that of the least likely row of the whole buffer, not of the
  /// batch.
  bool weights_of_buffer = false;
  /// Destination of each leaf, by path: for all leaves, or none. A destination must hold the leaf's values of n rows.
  std::map<std::string, std::span<std::byte>> out{};
  /// Instead of `out`: puts the leaves into new arrays of ReplayBuffer::arena(). ReplayBatch::array_ref() returns them.
  /// A channel of that arena sends them without a copy, once.
  bool in_arena = false;
  std::optional<ReplayHindsight> hindsight{};  ///< Replaces the goals of some rows. nullopt: all keep theirs.
};

/// Options for ReplayBuffer::sample_sequences().
struct ReplaySequences {
  std::uint64_t stride = 1;        ///< Distance between the rows of a sequence.
  bool pad = true;                 ///< Allows shorter sequences. mask() marks the rows.
  unsigned threads = 1;            ///< Maximum number of threads that copy.
  std::string sampler{};           ///< Name of the sampler that chooses rows. Empty: all equally likely.
  bool replace = true;             ///< Allows several sequences with the same chosen row.
  std::optional<double> beta{};    ///< Replaces the sampler's beta.
  bool weights_of_buffer = false;  ///< See ReplayDraw. All rows of a sequence have the weight of the chosen row.
  /// See ReplayDraw. A destination must hold the leaf's values of n x (burn_in + length) rows.
  std::map<std::string, std::span<std::byte>> out{};
  bool in_arena = false;  ///< See ReplayDraw.
  /// Rows before the chosen row, in addition to `length`, that a recurrent network reads first. Rows before the start
  /// of the episode are left out (mask()). The chosen row is at this position of its sequence.
  std::uint64_t burn_in = 0;
  /// Samples whole episodes of at most `length` rows that have ended, all with the same probability, and none twice
  /// without `replace`. Needs the default `stride`, `sampler` and `burn_in`.
  bool episodes = false;
};

/// Marks for the rows of one call, in addition to their leaves. Each span has one entry per row, or is empty.
struct ReplayMarks {
  /// Marks rows at which an episode was cut off. A row needs no mark if its leaves say that the episode ended. If
  /// ReplayEpisodes::done is nullopt, or if no leaf ends episodes, the marked episodes terminated.
  std::span<const bool> ends{};
  std::span<const double> priorities{};  ///< Priority of each row.
  /// Last observations, for buffers with `next`: a pytree of arrays with the leaves of `next`. They have one entry for
  /// each row, or for each row that ends its episode. Episodes that were cut off need them.
  Value final{};
  std::span<const bool> reset{};  ///< Marks rows of a vector of streams that are not steps. add() skips them.
};

/// The step in which a vector environment begins a new episode, like Gymnasium's AutoresetMode.
enum class ReplayAutoreset : std::uint8_t {
  kNone,  ///< Not specified: ReplayMarks::reset marks the rows that are not steps.
  /// The step after the end, which ignores its action. add() skips the row after one that ended an episode.
  kNextStep,
  kSameStep,  ///< The step that ended the episode. Every row is a step.
};

/// Statistics of a buffer, for all processes together unless noted.
struct ReplayStats {
  std::uint64_t rows = 0;       ///< Rows that can be sampled now, see ReplayBuffer::size().
  std::uint64_t capacity = 0;   ///< Maximum number of rows.
  std::uint64_t chunk = 0;      ///< Rows that are freed together.
  std::uint64_t row_bytes = 0;  ///< Bytes of a row.
  std::uint64_t max_bytes = 0;  ///< Bytes of all rows of a full buffer.
  /// Rows and last observations added since the buffer was made. A loaded buffer continues the counts of the saved one;
  /// this applies to samples, too. A chunk that was left partly full counts as full once it is freed.
  std::uint64_t added = 0;
  std::map<std::string, std::uint64_t> samples{};  ///< Sampled rows or sequences, by sampler.
  double samples_per_insert = 0;                   ///< All samples / `added`.
  std::uint64_t inserted = 0;  ///< Rows that the rate limiter has counted since the last clear(). 0: no limiter.
  std::uint64_t sampled = 0;   ///< Samples, counted likewise.

  std::vector<int> waiting_to_add{};     ///< Process ids that are waiting for samples, as the limit requires.
  std::vector<int> waiting_to_sample{};  ///< Process ids that are waiting for rows.

  // Since the last call on this object. 0 in the first call.
  double added_per_s = 0;       ///< Rows and last observations.
  double sampled_per_s = 0;     ///< Samples of all samplers.
  std::uint64_t drawn = 0;      ///< Rows that this object has sampled. The values below refer to these.
  double age_mean = 0;          ///< Mean of ReplayBatch::age().
  double age_max = 0;           ///< Maximum of ReplayBatch::age().
  double version_lag_mean = 0;  ///< Mean distance of a row's version from the largest version known to this object.
  double version_lag_max = 0;   ///< Maximum of that distance.
};

/// Called by the thread that saves or loads a buffer: at the start with 0, at most every 50 ms, and at the end with
/// `done_bytes` equal to `total_bytes`. If it throws, the save or load ends, and the exception reaches its caller.
using ReplayProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

/// Options for load_replay(). Defaults are the saved values. Columns and the ReplayEpisodes cannot be changed, except
/// `gamma`.
struct ReplayLoad {
  /// 0: as saved. load_replay() then fails with kInvalid if an empty buffer of that capacity takes more than 256 MiB
  /// plus 16 times the size of the files. A smaller capacity keeps the newest rows.
  std::uint64_t capacity = 0;
  std::string name{};                        ///< Name of the buffer. Empty: none.
  std::optional<ReplaySampling> sampling{};  ///< Replaces the samplers, unless `samplers` is empty.
  std::optional<double> gamma{};             ///< Replaces ReplayEpisodes::gamma.
  /// Replaces all limits: also set those that you want to keep. With the same `rate`, its counts continue. With another
  /// one, each loaded row counts as inserted, and as sampled samples_per_insert times. `chunk` is at most the saved
  /// one.
  std::optional<ReplayLimits> limits{};
  std::optional<Arena> arena{};  ///< Arena to use. By default its own.
  ReplayProgress progress{};     ///< Gets the bytes read, and the size of the files.
};

/// Options for ReplayBuffer::save().
struct ReplaySave {
  /// Called with the bytes written, and the total number of bytes to write. The total grows if rows are overwritten
  /// meanwhile and others take their place. If it throws, the previous save stays valid.
  ReplayProgress progress{};
};

/// The result of ReplayBuffer::save().
struct ReplaySaved {
  std::uint64_t save = 0;     ///< Number of the save, from 1.
  std::uint64_t rows = 0;     ///< Rows in the files that can be sampled.
  std::uint64_t written = 0;  ///< Bytes that this save has written.
  std::uint64_t bytes = 0;    ///< Bytes of all files.
};

/// One stream of rows, such as that of one environment. A forked child that uses it begins a stream of its own.
class ReplayWriter {
 public:
  /// Adds a row and returns its index. If the buffer has `next`, a truncated row needs the observation after it, as
  /// `final` here or in end(). Until then the next row is kInvalid. `final` is ignored if the row does not end its
  /// episode. A row without a priority gets the largest one given so far. Blocks if the buffer has a limit.
  /// - kInvalid: a leaf, which the error names, is missing, unknown or does not fit. Nothing is added.
  /// - kFull: the timeout expired.
  /// - kPeerDied: all samplers were killed, and `on_peer_death` is kRaise (ReplayLimits).
  /// - kClosed: closed here.
  /// - Errors of Arena::new_array(), while the buffer grows.
  Result<std::int64_t> add(const Value& row, Timeout timeout = std::nullopt,
                           std::optional<double> priority = std::nullopt, const std::stop_token& stop = {},
                           const Value& final = nullptr) const;
  /// Ends the episode, so that all its rows can be sampled. `final` is the last observation, a pytree of the buffer's
  /// `next` leaves, or None. `truncated`: the episode was cut off and did not terminate; buffers with `next` then need
  /// `final` (kInvalid). The last row's own `terminated` or `truncated` takes precedence. Other errors are those of
  /// add().
  Status end(const Value& final = nullptr, bool truncated = false, Timeout timeout = std::nullopt,
             const std::stop_token& stop = {}) const;
  /// Adds many rows and returns their indices. `rows` is a pytree of arrays of one length, with an additional first
  /// dimension. Errors are those of add(). After kInvalid, nothing is added. After any other error, `completed` is the
  /// number of rows added, from the first on.
  Result<std::vector<std::int64_t>> extend(const Value& rows, const ReplayMarks& marks = {},
                                           Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Marks the rows added from now on, for instance with the version of the weights that acted.
  void set_version(std::int64_t version) noexcept;
  /// Returns the number of the stream, as in ReplayBatch::writer(); kClosed after close().
  Result<std::uint32_t> stream() const;
  /// Ends the stream; its rows stay. Idempotent. The destructor of the last handle does the same.
  void close();
  /// True if this object was closed or moved from.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayWriter(std::shared_ptr<api::ReplayWriterState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayWriterState> state_;
};

/// Several streams that get rows together, such as a vector of environments.
class ReplayVectorWriter {
 public:
  /// Adds a row to each stream. `rows` is a pytree of arrays with one entry per stream in the first dimension. Returns
  /// the indices, -1 for a skipped row. A row is skipped if it is not a step: `marks` says so, or the environment
  /// resets in it (ReplayAutoreset::kNextStep, Gymnasium's default).
  ///
  /// Errors are those of ReplayWriter::add(). After kInvalid, nothing is added. After any other error, `completed` is
  /// the number of streams, from the first on, that have stored or skipped their row. If it is 0, nothing has changed,
  /// and you can repeat the call.
  Result<std::vector<std::int64_t>> add(const Value& rows, const ReplayMarks& marks = {},
                                        Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;
  /// Returns the writers of the single streams; empty if this object was moved from.
  const std::vector<ReplayWriter>& writers() const& noexcept;
  /// Returns copies, since the object is a temporary.
  std::vector<ReplayWriter> writers() && { return writers(); }
  /// Returns the number of streams.
  std::size_t size() const noexcept { return writers().size(); }
  /// Calls ReplayWriter::set_version() on each writer.
  void set_version(std::int64_t version) noexcept;
  /// Ends the streams; their rows stay. Idempotent.
  void close();
  /// True if all streams are closed.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayVectorWriter(std::shared_ptr<api::ReplayVectorState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayVectorState> state_;
};

/// A handle of a replay buffer.
class ReplayBuffer {
 public:
  /// Makes a new stream. Returns kClosed after close().
  Result<ReplayWriter> writer() const;
  /// Makes n streams that get rows together. Returns kInvalid if n is 0 or exceeds 2^20, and kClosed after close().
  Result<ReplayVectorWriter> vector_writer(std::size_t n, ReplayAutoreset autoreset = ReplayAutoreset::kNone) const;

  /// Adds a row to the calling thread's own stream, which ends with the thread. See ReplayWriter::add().
  Result<std::int64_t> add(const Value& row, Timeout timeout = std::nullopt,
                           std::optional<double> priority = std::nullopt, const std::stop_token& stop = {},
                           const Value& final = nullptr) const;
  /// Ends the episode in that stream. See ReplayWriter::end().
  Status end(const Value& final = nullptr, bool truncated = false, Timeout timeout = std::nullopt,
             const std::stop_token& stop = {}) const;
  /// Adds many rows to that stream. See ReplayWriter::extend().
  Result<std::vector<std::int64_t>> extend(const Value& rows, const ReplayMarks& marks = {},
                                           Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Samples n rows. Waits until there is a row.
  /// - kEmpty: the timeout expired.
  /// - kPeerDied: all processes that added rows were killed, and ReplayLimits::on_peer_death is kRaise.
  /// - kInvalid: n is 0 or, without `replace`, exceeds the number of rows; no such sampler; `out` does not fit; or the
  ///   buffer does not have what `hindsight` needs.
  /// - kClosed: closed here.
  Result<ReplayBatch> sample(std::size_t n, Timeout timeout = std::nullopt, const ReplayDraw& how = {},
                             const std::stop_token& stop = {}) const;
  /// Samples n sequences of `length` rows. The first row is uniformly chosen unless `how` names a sampler; the others
  /// follow in its episode. Waits like sample().
  Result<ReplayBatch> sample_sequences(std::size_t n, std::size_t length, Timeout timeout = std::nullopt,
                                       const ReplaySequences& how = {}, const std::stop_token& stop = {}) const;
  /// Sets the priorities of rows, for one sampler, or for all that have priorities. An entry of the result is false if
  /// the row has been overwritten, or if the index is -1, which add() of a vector writer returns for a skipped row.
  /// Returns kInvalid, and changes nothing, if the lengths differ, if a priority is negative, not finite or too large,
  /// or if an index was never returned.
  Result<std::vector<bool>> update_priorities(std::span<const std::int64_t> index, std::span<const double> priority,
                                              const std::string& sampler = {}) const;
  /// The same.
  Result<std::vector<bool>> update_priorities(std::span<const std::int64_t> index, std::span<const float> priority,
                                              const std::string& sampler = {}) const;
  /// Returns the largest priority given so far, which is 1.0 at first. Rows without a priority get it. 0: closed.
  double max_priority() const noexcept;

  /// Returns the number of rows that can be sampled; 0 after close(). With `stack`, a row stops counting once the
  /// buffer has dropped earlier frames of its stack.
  std::uint64_t size() const noexcept;
  /// Returns the maximum number of rows.
  std::uint64_t capacity() const noexcept;
  /// Returns the arena of the buffer; kClosed after close(). A channel of this arena sends the arrays of a batch
  /// without a copy if the batch is in the arena (ReplayDraw::in_arena).
  Result<Arena> arena() const;
  /// Returns the columns of a row, in order.
  std::vector<ReplayColumn> columns() const;
  /// Returns the statistics; kClosed after close().
  Result<ReplayStats> stats() const;
  /// Removes all rows. Their indices are never used again. Returns kTimeout if a stopped process holds the
  /// lock, and kClosed after close().
  Status clear(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Saves the buffer to a folder, which it makes if necessary. Writes only what the folder does not have yet.
  /// - kOs: a file operation failed.
  /// - kUnavailable: another process saves or loads there, or all rows were overwritten during each of several
  ///   attempts.
  /// - kExists: the folder has other files.
  Result<ReplaySaved> save(const std::string& path, const ReplaySave& how = {}, const std::stop_token& stop = {}) const;

  /// Returns a text with which a process of the same user opens this buffer. The buffer stays alive until that
  /// process has opened it, even if you close this object earlier. Returns kClosed after close(), and
  /// kOutOfSharedMemory if there is no memory to record the transfer.
  Result<std::string> handle() const;
  /// Opens the buffer of a handle.
  /// - kInvalid: the text is not a handle.
  /// - kIncompatible: the handle is of another kind of object.
  /// - kNotFound: no process is attached any more.
  static Result<ReplayBuffer> open(const std::string& handle);

  /// Closes this object, its copies and its writers. Ends the waits of their calls. Batches stay valid.
  void close();
  /// True if this object was closed or moved from.
  bool closed() const noexcept;

 private:
  friend struct api::ReplayState;
  explicit ReplayBuffer(std::shared_ptr<api::ReplayState> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<api::ReplayState> state_;
};

/// Makes a buffer. Throws BadResult: kInvalid, with the numbers and the leaf, for options that do not fit, and kExists
/// if the name is in use.
ReplayBuffer make_replay(const ReplayOptions& options);

/// Opens the buffer that a process of this user has named, in C++ or Python. Waits up to `timeout` for a process to
/// make it (kTimeout); by default it does not wait. Returns kNotFound if the name is not in use, and kInvalid if it
/// belongs to another kind of object.
Result<ReplayBuffer> open_replay(const std::string& name, Timeout timeout = std::chrono::nanoseconds(0));

/// Makes a buffer with the saved rows of a folder, their indices and their priorities.
/// - kNotFound: nothing was saved there.
/// - kCorrupt: a byte of a file is not as it was written. The error has the file and the numbers.
/// - Other errors are those that make_replay() throws.
/// - Exceptions of `progress`; the new buffer is freed.
Result<ReplayBuffer> load_replay(const std::string& path, const ReplayLoad& how = {});

/// Opens a buffer that a Python program has put into a message: `item["buffer"].as<shmtree::ReplayBuffer>()`. Errors
/// are those of ReplayBuffer::open(), and kInvalid for another item.
template <>
struct ItemAs<ReplayBuffer> {
  static Result<ReplayBuffer> make(const Item& item);
};

}  // namespace shmtree
