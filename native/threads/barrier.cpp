#include "native/threads/barrier.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sojourn {

namespace {
// About 20 to 40 microseconds: longer than the tail of a well-balanced phase, shorter than a time slice.
constexpr int kSpins = 1000;
}  // namespace

void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void wait_for_change(const std::atomic<uint32_t>& word, uint32_t seen, std::atomic<uint32_t>& parked) {
    for (int spin = 0; spin < kSpins; spin++) {
        if (word.load(std::memory_order_acquire) != seen) return;
        pause_briefly();
    }
    // Sequential consistency here and in the waker: either the waker sees us counted, or we see the changed word.
    parked.fetch_add(1, std::memory_order_seq_cst);
    while (word.load(std::memory_order_seq_cst) == seen) word.wait(seen, std::memory_order_seq_cst);
    parked.fetch_sub(1, std::memory_order_relaxed);
}

void wake_all(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& parked) {
    if (parked.load(std::memory_order_seq_cst) != 0) word.notify_all();
}

}  // namespace sojourn
