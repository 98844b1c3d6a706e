// The registry of rows, of all verbs and from all libraries of the process.
#include "plan/registry.h"

#include <atomic>
#include <mutex>

namespace sparseloom::plan {
namespace {

class Registry {
 public:
  int add(const AnyRow& row) {
    std::lock_guard lock(mutex_);
    int number = 0;
    for (const AnyRow& other : rows_) {
      if (std::string_view(other.verb) != row.verb) continue;
      if (other.row_size != row.row_size || other.problem_size != row.problem_size ||
          other.args_size != row.args_size || other.schedule_size != row.schedule_size)
        return SPARSELOOM_OTHER_ABI;
      if (std::string_view(other.name) == row.name) return SPARSELOOM_NAME_TAKEN;
      ++number;
    }
    rows_.push_back(row);
    count_.store(rows_.size(), std::memory_order_release);
    return number;
  }

  std::vector<AnyRow> of(std::string_view verb) {
    std::lock_guard lock(mutex_);
    std::vector<AnyRow> of_verb;
    for (const AnyRow& row : rows_)
      if (row.verb == verb) of_verb.push_back(row);
    return of_verb;
  }

  std::vector<AnyRow> every() {
    std::lock_guard lock(mutex_);
    return rows_;
  }

  std::size_t count() const noexcept { return count_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;
  std::vector<AnyRow> rows_;
  std::atomic<std::size_t> count_{0};
};

// It is leaked, as plans may be made while static objects are destroyed.
Registry& all() {
  static Registry& registry = *new Registry;
  return registry;
}

}  // namespace

std::vector<AnyRow> rows_of(std::string_view verb) { return all().of(verb); }
std::vector<AnyRow> all_rows() { return all().every(); }
std::size_t row_count() noexcept { return all().count(); }

int add_row(const AnyRow& row) {
  if (row.size != sizeof(AnyRow) || row.abi != kRowAbi || row.schedule_size > kScheduleBytes)
    return SPARSELOOM_OTHER_ABI;
  if (row.verb == nullptr || row.typed == nullptr || row.name == nullptr || row.name[0] == 0 ||
      row.propose == nullptr)
    return SPARSELOOM_INCOMPLETE;
  return all().add(row);
}

}  // namespace sparseloom::plan
