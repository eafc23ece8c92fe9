// Waiting for another thread: spin for some microseconds, then sleep in the kernel.
//
// Spinning keeps the many short phases of a step cheap; sleeping keeps the threads harmless when the machine has other
// work to do, for a spinner may be burning the very core that the awaited thread needs.
#pragma once
#include <atomic>
#include <cstdint>

namespace sojourn {

class Signal {
public:
    uint32_t value() const { return word_.load(std::memory_order_acquire); }

    // Returns when the value is no longer `seen`.
    void wait_while(uint32_t seen);

    // Adds one. What was written before is visible to those who see it. Without sleepers no system call is made.
    void advance();

private:
    alignas(64) std::atomic<uint32_t> word_{0};
    std::atomic<uint32_t> sleepers_{0};
};

}  // namespace sojourn
