// A barrier for a handful of threads: spins for some microseconds, then parks in the kernel.
//
// Spinning keeps the many short phases of a step cheap; parking keeps the threads harmless when the machine has other
// work to do, for a spinner may be burning the very core that the last arrival is waiting for.
#pragma once
#include <atomic>
#include <cstdint>

namespace sojourn {

// Tells the processor that this is a wait loop.
void pause_briefly();

// Waits until `word` differs from `seen`: first spinning, then asleep. `parked` counts the sleepers.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& parked);

// Wakes whoever sleeps on `word`; call it after changing the word. Without sleepers it makes no system call.
void wake_all(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& parked);

class Barrier {
public:
    explicit Barrier(int threads) : threads_(static_cast<uint32_t>(threads)) {}

    // Returns when all threads have arrived. The last one runs `before_release` while the others still wait, so what
    // it writes needs no lock.
    template <class Function>
    void arrive_and_wait(Function&& before_release) {
        const uint32_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            before_release();
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_seq_cst);
            wake_all(round_, parked_);
        } else {
            wait_for_change(round_, round, parked_);
        }
    }

private:
    const uint32_t threads_;
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
    std::atomic<uint32_t> parked_{0};
};

}  // namespace sojourn
