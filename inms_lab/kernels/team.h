// Threads that work on one thing in phases. They wait for each other awake: a phase is shorter than
// falling asleep and being woken takes.
#pragma once
#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>

struct Team {
  std::atomic<int> here{0}, phase{0};
  std::atomic<int64_t> next{0};  // piece of work that nobody has taken yet
};

// One of a team: number `me` of `all`.
struct Member {
  Team& team;
  int64_t me, all;

  // All others have come as far as this.
  void wait() const {
    if (all == 1) return;
    const int now = team.phase.load(std::memory_order_acquire);
    if (team.here.fetch_add(1, std::memory_order_acq_rel) + 1 == all) {
      team.here.store(0, std::memory_order_relaxed);
      team.phase.store(now + 1, std::memory_order_release);
      return;
    }
    for (int turns = 0; team.phase.load(std::memory_order_acquire) == now;)
      if (turns < PATIENCE)
        turns++;
      else
        sched_yield();  // somebody else may need this processor
  }

  int64_t begin(int64_t of) const { return of * me / all; }
  int64_t end(int64_t of) const { return of * (me + 1) / all; }

 private:
  static constexpr int PATIENCE = 20000;
};

// `work(member)` by `threads` threads.
template <class Work>
void together(int threads, const Work& work) {
  Team team;
#pragma omp parallel num_threads(threads)
  work(Member{team, omp_get_thread_num(), omp_get_num_threads()});
}
