// Runs the measurements, and prints a table and ratios. Competitors take turns, so that a slow moment of the machine
// affects all of them. Compare medians, and their ratios within one run. Accepts the arguments of Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

// The speedup of the first of two medians over the second.
struct Ratio {
  const char* ours;
  const char* other;
  const char* text;
};
constexpr Ratio kRatios[] = {
    {"throughput/1KB", "throughput/1KB_iceoryx", "iceoryx's rate of 1 KB messages"},
    {"throughput/1KB_polling", "throughput/1KB_iceoryx", "iceoryx's rate of 1 KB messages, polling"},
    {"throughput/1KB_tree", "throughput/1KB_iceoryx", "iceoryx's rate of 1 KB messages, as a tree"},
    {"throughput/1KB_bytes", "throughput/1KB_iceoryx_untyped", "iceoryx's rate of 1 KB messages, as bytes"},
    {"throughput/1KB_struct", "throughput/1KB_iceoryx", "iceoryx's rate of 1 KB messages, as a struct"},
    {"throughput/1KB_loan", "throughput/1KB_iceoryx", "iceoryx's rate of 1 KB messages, as a loan"},
    {"half_round_trip/1KB_polling", "half_round_trip/1KB_iceoryx", "iceoryx's speed there and back, polling"},
    {"half_round_trip/number", "half_round_trip/bare_futex", "a bare futex's speed there and back"},
    {"half_round_trip_after_a_pause/number", "half_round_trip_after_a_pause/bare_futex",
     "a bare futex's speed there and back, after a pause"},
};

void print_load(const char* when) {
  double load[3] = {};
  if (getloadavg(load, 3) == 3) std::printf("load averages %s: %.2f %.2f %.2f\n", when, load[0], load[1], load[2]);
}

class Table : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override {
    std::printf("%d processors at %.0f MHz\n", context.cpu_info.num_cpus, context.cpu_info.cycles_per_second / 1e6);
    print_load("before");
    std::fflush(stdout);
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      Row& row = rows_[name_of(run)];
      if (run.error_occurred) {
        row.error = run.error_message;
      } else if (run.run_type == Run::RT_Iteration) {
        row.times.push_back(run.GetAdjustedRealTime());
        for (const auto& [name, counter] : run.counters) row.counters[name].push_back(counter.value);
      }
    }
  }
  void Finalize() override {
    print_load("after");
    std::printf("%-52s %12s %22s\n", "", "median ns", "least to most");
    for (auto& [name, row] : rows_) print(name, row);
    for (const Ratio& ratio : kRatios) {
      const double ours = median_of(ratio.ours), other = median_of(ratio.other);
      if (ours != 0 && other != 0) std::printf("%6.2f x  %s\n", other / ours, ratio.text);
    }
  }

 private:
  struct Row {
    std::vector<double> times;
    std::map<std::string, std::vector<double>> counters;
    std::string error;
  };
  static std::string name_of(const Run& run) {
    std::string name = run.run_name.function_name;
    if (!run.run_name.args.empty()) name += "/" + run.run_name.args;
    if (!run.run_name.threads.empty()) name += "/" + run.run_name.threads;
    return name;
  }
  static double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
  double median_of(const std::string& name) {
    const auto row = rows_.find(name);
    return row == rows_.end() ? 0 : median(row->second.times);
  }
  static void print(const std::string& name, const Row& row) {
    if (!row.error.empty()) {
      std::printf("%-52s %s\n", name.c_str(), row.error.c_str());
      return;
    }
    const auto [least, most] = std::minmax_element(row.times.begin(), row.times.end());
    std::printf("%-52s %12.0f %10.0f %11.0f", name.c_str(), median(row.times), *least, *most);
    for (const auto& [counter, values] : row.counters) std::printf("  %s %.0f", counter.c_str(), median(values));
    std::printf("\n");
  }

  std::map<std::string, Row> rows_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words = {argv[0], "--benchmark_repetitions=3", "--benchmark_enable_random_interleaving=true",
                                    "--benchmark_min_time=0.05"};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  benchmark::Shutdown();
}
