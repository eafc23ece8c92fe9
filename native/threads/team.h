// The threads that run a step together. The calling thread is worker 0; the others sleep between steps.
//
// A step is one job made of phases. In a phase items are dealt out to whoever asks, and the phase is over when every
// item is done, not when every worker has been there: a worker that the system took off its core between two items
// holds nobody up, and skips what is over when it comes back. Results must never depend on who computes what.
//
//     ticket   (phase, next item)       claimed by compare and swap, so a late worker cannot take a new phase's items
//     done     items finished in it     whoever finishes the last one opens the next phase
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "native/threads/waiting.h"

namespace sojourn {

class Team {
public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // The caller runs `job(0)`, and the other workers run `job(worker)` too if they are awake in time. Returns when
    // nobody is inside. The job is phases and nothing else that writes to shared memory, the same phases for every
    // worker; it must not throw. One caller at a time.
    void run(const std::function<void(int)>& job);

    // One phase, inside a job: `function(i)` once for each i in [0, count), `chunk` neighbours at a time. Returns when
    // all are done.
    template <class Function>
    void for_each(int count, int chunk, Function&& function) {
        if (count == 0) return;
        if (size_ == 1) {
            for (int i = 0; i < count; i++) function(i);
            return;
        }
        const uint32_t phase = next_phase();
        for (int begin = claim(phase, count, chunk); begin < count; begin = claim(phase, count, chunk)) {
            const int end = begin + chunk < count ? begin + chunk : count;
            for (int i = begin; i < end; i++) function(i);
            finish(phase, end - begin, count);
        }
        if (phase_.value() == phase) phase_.wait_while(phase);
    }

private:
    static uint32_t next_phase();
    int claim(uint32_t phase, int count, int chunk);
    void finish(uint32_t phase, int items, int count);
    void work(int worker);
    bool enter();
    void leave();

    const int size_;
    Signal phase_;  // phases that are over, of all jobs
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int> done_{0};

    Signal jobs_started_;
    uint32_t first_phase_ = 0;  // of the job
    const std::function<void(int)>* job_ = nullptr;
    alignas(64) std::atomic<uint32_t> gate_{0};  // kOpen while a job may be entered, plus the helpers inside
    Signal left_;                                // counts departures
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> threads_;
};

}  // namespace sojourn
