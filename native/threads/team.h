// The threads that run a step together. The calling thread is worker 0; the others sleep between steps.
//
// A step is one job that every worker enters. Inside it, `for_each` deals out items of a phase: any worker may get any
// item, so results must never depend on who computes what. Each `for_each` ends in a barrier.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "native/threads/barrier.h"

namespace sojourn {

class Team {
public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Every worker runs `job(worker)` once; returns when all have. The job must not throw. One caller at a time.
    void run(const std::function<void(int)>& job);

    // Inside a job, called by every worker with the same arguments: each index in [0, count) goes to exactly one
    // worker, `chunk` neighbours at a time. Afterwards all of them are done.
    template <class Function>
    void for_each(int count, int chunk, Function&& function) {
        if (size_ == 1) {
            for (int i = 0; i < count; i++) function(i);
            return;
        }
        while (true) {
            const int begin = next_item_.fetch_add(chunk, std::memory_order_relaxed);
            if (begin >= count) break;
            const int end = begin + chunk < count ? begin + chunk : count;
            for (int i = begin; i < end; i++) function(i);
        }
        barrier_.arrive_and_wait([this] { next_item_.store(0, std::memory_order_relaxed); });
    }

private:
    void work(int worker);

    const int size_;
    Barrier barrier_;
    alignas(64) std::atomic<int> next_item_{0};
    alignas(64) std::atomic<uint32_t> jobs_started_{0};
    std::atomic<uint32_t> parked_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void(int)>* job_ = nullptr;
    std::vector<std::thread> threads_;
};

}  // namespace sojourn
